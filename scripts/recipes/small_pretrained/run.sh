#!/usr/bin/env bash
# A pretrained model on word problems: GRPO, SFT on its own right answers, and SFT on demonstrations. SEEDS is the number
# of seeds (default 1); repeat the command with more to add some. Then mmr1 compare of compare_algorithms.yaml has the data
# for RLOO, Dr. GRPO, DAPO, LoRA and a longer run.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

if [[ -n "$smoke" ]]; then # no weights are fetched
    "$python" "$folder/data.py" "$out/data" 0
    stage train rl data.train="$out/data/rl.jsonl" trainer.validation=null
    stage sft sft data.train="$out/data/demonstrations.jsonl"
    exit
fi

"$python" "$folder/weights.py" "$out/model"
for ((seed = 0; seed < ${SEEDS:-1}; seed++)); do
    data="$out/data/seed$seed"
    if [[ -e "$data/own_answers.jsonl" ]]; then continue; fi
    "$python" "$folder/data.py" "$data" "$seed"
    mmr1 eval "$folder/rl.yaml" model.path="$out/model" seed="$seed" trainer.validation.data="$data/rl.jsonl" \
        eval.output_dir="$data/answers" "${overrides[@]}"
    "$python" -m datasets_prep demonstrations "$data/rl.jsonl" "$data/answers/completions.jsonl" \
        --function answer --per-record 2 --output "$data/own_answers.jsonl"
done
mmr1 parity "$out/model" model.dtype=float32
mmr1 eval "$folder/rl.yaml" model.path="$out/model" trainer.validation.data="$out/data/seed0/eval.jsonl" \
    eval.output_dir="$out/before" "${overrides[@]}"
mmr1 compare "$folder/compare.yaml" --seeds "${SEEDS:-1}" --output "$out/compare" "${overrides[@]}"
