#!/usr/bin/env bash
# A pretrained model with a tower made here: the tower learns captions and counts, then GRPO against SFT on demonstrations.
# SEEDS is the number of seeds (default 1); repeat the command with more to add some.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

if [[ -n "$smoke" ]]; then # no weights are fetched
    "$python" "$folder/data.py" "$out/data" 0 rl demonstrations
    stage train rl data.train="$out/data/rl.jsonl" trainer.validation=null
    stage sft control data.train="$out/data/demonstrations.jsonl"
    exit
fi

text="runs/small_pretrained/model"
"$python" scripts/recipes/small_pretrained/weights.py "$text"
for ((seed = 0; seed < ${SEEDS:-1}; seed++)); do
    if [[ ! -e "$out/data/seed$seed" ]]; then "$python" "$folder/data.py" "$out/data/seed$seed" "$seed" rl demonstrations eval; fi
done
if [[ ! -e "$out/aligned" ]]; then
    "$python" "$folder/data.py" "$out/data" 0 align
    "$python" "$folder/model.py" "$text" "$out/start" --layers 2
    stage sft tower
    "$python" "$folder/model.py" "$text" "$out/whole" --tower "$(checkpoint tower)"
    stage sft align
    cp -r "$(checkpoint align)" "$out/aligned"
fi
mmr1 parity "$out/aligned" model.dtype=float32
mmr1 eval "$folder/rl.yaml" model.path="$out/aligned" trainer.validation.data="$out/data/seed0/eval.jsonl" \
    eval.output_dir="$out/before" "${overrides[@]}"
mmr1 compare "$folder/compare.yaml" --seeds "${SEEDS:-1}" --output "$out/compare" "${overrides[@]}"
