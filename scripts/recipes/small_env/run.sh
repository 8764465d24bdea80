#!/usr/bin/env bash
# Walk over a frozen lake, seen as pictures of Gymnasium. SFT, GRPO, a control: SFT for as long as GRPO took,
# and GRPO with blank pictures.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source scripts/recipes/small_task.sh

if ! "$python" -c "import gymnasium, pygame" 2>/dev/null; then
    echo "$folder plays FrozenLake of Gymnasium: pip install gymnasium pygame" >&2
    exit 2
fi
export PYTHONPATH="$PWD/$folder${PYTHONPATH:+:$PYTHONPATH}" SDL_VIDEODRIVER=dummy  # blank.py; no screen
"$python" "$folder/data.py" "$out/data" "$seed"
[[ -n "$smoke" ]] || mmr1 model new --seed "$seed" --corpus "$folder/corpus.txt" "$out/model"
stage sft sft model.path="$out/model" data.train="$out/data/sft.jsonl"
stage train rl model.path="$(checkpoint sft)" data.train="$out/data/rl.jsonl"
control "$out/data/sft.jsonl"
compare eval
without
