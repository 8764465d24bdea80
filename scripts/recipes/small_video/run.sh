#!/usr/bin/env bash
# Which way does it move? SFT, GRPO, and a control: SFT for as long as GRPO took.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source scripts/recipes/small_task.sh

begin video
shown="$(first 24 direction-sft)"
stage sft sft model.path="$out/model" data.train="$shown"
stage train rl model.path="$(checkpoint sft)" data.train="$out/data/direction-rl.jsonl" \
    algorithm.ptx.data="$shown"
control "$shown"
compare direction-eval
