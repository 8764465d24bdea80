# Shared by the small tasks; RECIPE/run.sh sources it after common.sh. The override seed=N also seeds
# the data and the model, and the output goes to runs/RECIPE/seedN.
seed=0
for override in "${overrides[@]}"; do
    case "$override" in seed=*) seed="${override#seed=}" ;; esac
done
shrunk_eval=()
if [[ -n "$smoke" ]]; then
    shrunk_eval=(eval.limit=8 scoring.timeout_s=20 rollout.max_prompt_length=1520 rollout.max_response_length=16)
else
    out+="/seed$seed"
fi

# begin GENERATOR [OPTION ...]: makes the data in $out/data and a random model, with these options, in
# $out/model.
begin() {
    "$python" -m datasets_prep make "$1" --output "$out/data" --seed "$seed"
    [[ -n "$smoke" || -f "$out/model/config.json" ]] || mmr1 model new --seed "$seed" "${@:2}" "$out/model"
}

# first COUNT SPLIT: writes the first records of a split to a file.
first() {
    head -n "$1" "$out/data/$2.jsonl" >"$out/data/$2-$1.jsonl"
    echo "$out/data/$2-$1.jsonl"
}

# control RECORDS: continues SFT for as long as RL took.
control() {
    stage sft sft data.train="$1" model.path="$(checkpoint sft)" trainer.output_dir="$out/control" \
        trainer.max_steps="$("$python" scripts/recipes/control_steps.py "$out/sft" "$out/rl")"
}

# without: GRPO on the same prompts without the tool, and its accuracy on those held out.
without() {
    stage train without model.path="$(checkpoint sft)" data.train="$out/data/rl.jsonl"
    mmr1 eval "$folder/without.yaml" eval.models.without="$(checkpoint without)" \
        eval.data.held_out="$out/data/eval.jsonl" eval.output_dir="$out/eval_without" \
        "${shrunk_eval[@]}" "${overrides[@]}"
}

# compare SPLIT: evaluates the three models on held-out records and compares them.
compare() {
    mmr1 eval "$folder/rl.yaml" eval.models.sft="$(checkpoint sft)" \
        eval.models.control="$(checkpoint control)" eval.models.rl="$(checkpoint rl)" \
        eval.data.held_out="$out/data/$1.jsonl" eval.output_dir="$out/eval" \
        "${shrunk_eval[@]}" "${overrides[@]}"
}
