# What the small tasks share; sourced by RECIPE/run.sh after common.sh. seed=N, one of the
# key=value, also seeds the data and the model, and names the folder: runs/RECIPE/seedN.
seed=0
for override in "${overrides[@]}"; do
    case "$override" in seed=*) seed="${override#seed=}" ;; esac
done
[[ -n "$smoke" ]] || out+="/seed$seed"

# begin GENERATOR: its data in $out/data, and a model that knows nothing in $out/model.
begin() {
    "$python" -m datasets_prep make "$1" --output "$out/data" --seed "$seed"
    [[ -n "$smoke" ]] || mmr1 model new --seed "$seed" "$out/model"
}

# first COUNT SPLIT: a file of the first records of a split.
first() {
    head -n "$1" "$out/data/$2.jsonl" >"$out/data/$2-$1.jsonl"
    echo "$out/data/$2-$1.jsonl"
}

# control RECORDS: goes on with the supervised training for as long as RL took.
control() {
    stage sft sft data.train="$1" model.path="$(checkpoint sft)" trainer.output_dir="$out/control" \
        trainer.max_steps="$("$python" scripts/recipes/control_steps.py "$out/sft" "$out/rl")"
}

# compare SPLIT: the three models on the held-out records, and the differences with intervals.
compare() {
    mmr1 eval "$folder/rl.yaml" eval.models.sft="$(checkpoint sft)" \
        eval.models.control="$(checkpoint control)" eval.models.rl="$(checkpoint rl)" \
        eval.data.held_out="$out/data/$1.jsonl" eval.output_dir="$out/eval" \
        ${smoke:+eval.limit=8 rewards.timeout_s=20} "${overrides[@]}"
}
