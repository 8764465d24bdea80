#!/usr/bin/env bash
# Walk over a frozen lake of Gymnasium, seen as pictures. SFT, GRPO, a control: SFT for as long as GRPO took,
# and GRPO with blank pictures.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source scripts/recipes/small_task.sh

if ! "$python" -c "import gymnasium" 2>/dev/null; then
    echo "$folder plays an environment of Gymnasium: pip install gymnasium" >&2
    exit 2
fi
export PYTHONPATH="$PWD/$folder${PYTHONPATH:+:$PYTHONPATH}"  # for lake.py
"$python" "$folder/data.py" "$out/data" "$seed"
[[ -n "$smoke" ]] || mmr1 model new --seed "$seed" --corpus "$folder/corpus.txt" "$out/model"
stage sft sft model.path="$out/model" data.train="$out/data/sft.jsonl"
stage train rl model.path="$(checkpoint sft)" data.train="$out/data/rl.jsonl"
control "$out/data/sft.jsonl"
compare eval
without
