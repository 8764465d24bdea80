#!/usr/bin/env bash
# Which digit is there at second 5? No frame of the prompt shows it. SFT, GRPO with the tool frame, a
# control: SFT for as long as GRPO took, and GRPO without the tool.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source scripts/recipes/small_task.sh

begin frame --corpus "$folder/corpus.txt"
stage sft sft model.path="$out/model" data.train="$out/data/sft.jsonl"
stage train rl model.path="$(checkpoint sft)" data.train="$out/data/rl.jsonl"
control "$out/data/sft.jsonl"
compare eval
without
