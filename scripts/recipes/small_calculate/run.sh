#!/usr/bin/env bash
# What is 47*36? SFT, GRPO with the tool calculate, a control: SFT for as long as GRPO took, and GRPO
# without the tool.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source scripts/recipes/small_task.sh

begin calculate --corpus "$folder/corpus.txt"
stage sft sft model.path="$out/model" data.train="$out/data/sft.jsonl"
stage train rl model.path="$(checkpoint sft)" data.train="$out/data/rl.jsonl"
control "$out/data/sft.jsonl"
compare eval
without
