#!/usr/bin/env bash
# Where is the box? SFT, GRPO on the IoU, and a control: SFT for as long as GRPO took.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source scripts/recipes/small_task.sh

begin grounding
shown="$(first 60 sft)"
stage sft sft model.path="$out/model" data.train="$shown"
stage train rl model.path="$(checkpoint sft)" data.train="$out/data/rl.jsonl" algorithm.ptx.data="$shown"
control "$shown"
compare eval
