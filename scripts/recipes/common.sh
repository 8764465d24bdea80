# Shared by the recipes; RECIPE/run.sh sources it:
#
#   scripts/recipes/RECIPE/run.sh [--exact] [--smoke] [--7b] [key=value ...]
#
# --exact runs the stages of exact_*.yaml, the original's own, with the checkout that ORIGINAL names.
# key=value overrides apply to every stage that reads them. DATA is the folder of the downloaded datasets (default: data).
# MODEL is a model directory or hub name in place of the recipe's. FAMILY is the model_type of --smoke's model.
# --7b uses Qwen2.5-VL-7B instead of 3B. Stages use all GPUs of the machine. --smoke is a small
# test on the CPU: generated rows in each dataset's format, a model of 0.7M parameters, two steps per stage. With --exact
# and without ORIGINAL it takes prompt and rewards of the recipe's own YAML, and says so.
set -euo pipefail
recipe="$(basename "$(dirname "$(realpath "${BASH_SOURCE[1]}")")")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="scripts/recipes/$recipe"
python="${PYTHON:-.venv/bin/python}" # mmr1 recipe run sets PYTHON

out="runs/$recipe" smoke="" larger="" exact="" shrunk=() overrides=()
for argument in "$@"; do
    case "$argument" in
        --smoke) smoke=yes ;;
        --7b) larger=yes ;;
        --exact) exact=exact_ ;;
        *=*) overrides+=("$argument") ;;
        *) echo "usage: $folder/run.sh [--exact] [--smoke] [--7b] [key=value ...]" >&2; exit 2 ;;
    esac
done

if [[ -n "$exact" ]]; then
    if ! compgen -G "$folder/exact_*.yaml" > /dev/null; then echo "$folder has no exact_*.yaml" >&2; exit 2; fi
    if [[ -z "$smoke" && -z "${ORIGINAL:-}" ]] && grep -q ORIGINAL "$folder"/exact_*.yaml; then
        echo "ORIGINAL is not set: the path of a checkout of the original, at the commit that $folder/exact_*.yaml names" >&2
        exit 2
    fi
fi

mmr1() {
    if [[ -n "$exact" && "$1" == eval ]]; then set -- "$@" data.format=null data.media_root=null; fi  # records, not raw rows
    echo "\$ mmr1 $*"
    "$python" -m mmr1.cli "$@"
}

if [[ -n "$smoke" ]]; then
    out="${SMOKE_OUT:-runs/smoke}/$recipe"
    rm -rf "$out"
    mmr1 model new --family "${FAMILY:-qwen2_5_vl}" "$out/model"
    shrunk=(
        model.path="$out/model" model.dtype=float32 model.freeze_vision_tower=false model.gradient_checkpointing=false
        data.train_batch_size=2 data.video.max_frames=8 rollout.engine=hf rollout.n=4
        rollout.max_prompt_length=1520 rollout.max_response_length=16 scoring.timeout_s=20
        trainer.max_steps=2 trainer.threads=1 trainer.logging_steps=1
        trainer.vision_token_cost=1.0 resources.ranks=1
        algorithm.filter_groups=null  # a random model gives no signal
        algorithm.ppo_mini_batch_size=1
    )
fi

# read_raw NAME: does an exact stage read the rows of this dataset as they are?
read_raw() {
    [[ -n "$exact" ]] && grep -q "stage .*records $1)" "$folder/run.sh" && ! grep -q "data/$1/records" "$folder"/exact_*.yaml
}

# convert NAME CONVERTER INPUT [option ...]: converts a downloaded dataset into $out/data/NAME/records.jsonl.
convert() {
    local input="${DATA:-data}/$3"
    if [[ -n "$smoke" ]]; then
        input="$out/rows/$1"
        "$python" scripts/recipes/sample_rows.py "$recipe/$1" "$2" "$input"
    fi
    if read_raw "$1"; then return; fi
    "$python" -m datasets_prep convert "$2" --input "$input" --output "$out/data/$1" --workers "${WORKERS:-1}" "${@:4}"
}

# read_by COMMAND FILE OVERRIDE ...: sets `read` to the overrides of sections that this command reads. mmr1 refuses
# the others, which are for other stages.
read_by() {
    local command="$1" file="$2" unread override
    shift 2
    case "$command" in
        sft) unread="rollout|rewards|scoring|algorithm|dpo|rm|iterative_grpo|eval" ;;
        rm) unread="rollout|rewards|scoring|algorithm|sft|dpo|iterative_grpo|eval" ;;
        dpo) unread="algorithm|sft|rm|iterative_grpo" ;;
        train) unread="sft|dpo|rm|iterative_grpo" ;;
        iterative-grpo) unread="sft|dpo|rm" ;;
        *) unread="none" ;;
    esac
    if [[ "$command" == dpo ]] && ! grep -q "^rollout:" "$file"; then unread+="|rollout|rewards|scoring|eval"; fi  # no rounds
    read=()
    for override in "$@"; do
        if ! [[ "$override" =~ ^($unread)[.=] ]]; then read+=("$override"); fi
    done
}

# stage COMMAND NAME [key=value ...]: runs mmr1 COMMAND with NAME.yaml, or exact_NAME.yaml; the output goes to $out/NAME.
# A stage that was interrupted is resumed, and one that is finished is not repeated.
stage() {
    local command="$1" name="$2" file="$folder/$exact$2.yaml" sized=() resume=(--resume) read
    shift 2
    if [[ "$command" == eval ]]; then resume=(); fi  # it continues by itself
    if [[ ! -f "$file" ]]; then echo "$recipe, $name: no stage of the original"; return; fi
    if [[ -n "$exact" ]]; then set_exact "$name" "$@"; set -- "${given[@]}"; fi
    if [[ -n "$larger" ]]; then sized=(model.path=Qwen/Qwen2.5-VL-7B-Instruct); fi
    if [[ -n "${MODEL:-}" ]]; then sized+=(model.path="$MODEL"); fi
    read_by "$command" "$file" "${shrunk[@]}" "$@" "${overrides[@]}"
    mmr1 "$command" "$file" "trainer.output_dir=$out/$exact$name" "${sized[@]}" "${read[@]}" "${resume[@]}"
}

# set_exact NAME [key=value ...]: sets `given` to what an exact stage takes of these, and `file`. It names its data itself;
# in small they are the generated rows.
set_exact() {
    local name="$1" override
    shift
    given=()
    for override in "$@"; do
        case "$override" in
            data.train=*/rows/*) given+=("$override" "data.media_root=$(dirname "${override#*=}")") ;;
            data.train=*) if grep -q "train: runs/" "$file"; then given+=("$override"); fi ;;
            *) given+=("$override") ;;
        esac
    done
    if [[ -n "$smoke" ]] && grep -q "  validation:" "$file"; then given+=(trainer.validation=null); fi
    if [[ -n "$smoke" && -z "${ORIGINAL:-}" ]]; then
        "$python" scripts/recipes/without_original.py "$file" "$folder/$name.yaml" "$out/exact_$name.yaml"
        file="$out/exact_$name.yaml"
    fi
}

# The records of a dataset, and the last checkpoint of a stage.
records() { if read_raw "$1"; then find "$out/rows/$1" -name '*.jsonl' 2> /dev/null || true; else echo "$out/data/$1/records.jsonl"; fi }
checkpoint() { find "$out/$exact$1/checkpoints" -maxdepth 1 -name 'step_*' | sort | tail -n 1; }

# evaluate STAGE BENCHMARK ... [key=value ...]: evaluates the last checkpoint of a stage on benchmarks
# (mmr1/evaluation/presets.yaml), whose records `convert` has made under their names. Other keys are those of the paper's
# evaluation, which is too long for --smoke.
evaluate() {
    local stage="$1" data=() asked=() name
    shift
    for name in "$@"; do
        case "$name" in
            "") ;;
            eval.prompt=* | data.system_prompt=*) asked+=("$name") ;;
            *=*) if [[ -z "$smoke" ]]; then asked+=("$name"); fi ;;
            *) data+=("eval.data.$name=$(records "$name")") ;;
        esac
    done
    if [[ -n "$smoke" ]]; then asked+=(eval.limit=4); fi
    mmr1 eval "$out/$exact$stage/config.yaml" "model.path=$(checkpoint "$stage")" "${data[@]}" \
        "eval.output_dir=$out/${exact}eval" "${asked[@]}" "${overrides[@]}"
}

# original_s KEY TEXT: KEY with a text of the original's checkout in an exact run that has one; else nothing.
original_s() { if [[ -n "$exact" && -n "${ORIGINAL:-}" ]]; then echo "$1=$ORIGINAL/$2"; fi }
