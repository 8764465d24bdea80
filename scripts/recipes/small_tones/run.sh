#!/usr/bin/env bash
# Two tones: which is higher? SFT, GRPO, and a control: SFT for as long as GRPO took. All are also asked without sound.
FAMILY="${FAMILY:-qwen2_5_omni_thinker}"  # of --smoke's model too
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source scripts/recipes/small_task.sh

begin tones --family "$FAMILY"
stage sft sft model.path="$out/model" data.train="$out/data/sft.jsonl"
stage train rl model.path="$(checkpoint sft)" data.train="$out/data/rl.jsonl"
control "$out/data/sft.jsonl"
overrides+=("eval.data.silent=$out/data/silent.jsonl")
compare eval
