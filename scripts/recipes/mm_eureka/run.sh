#!/usr/bin/env bash
# MM-Eureka: GRPO on groups of middling difficulty; evaluation on mathematics with images.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

export REWARD_LOG_PATH="${REWARD_LOG_PATH:-$out/reward.log}"  # which the original's reward writes
mkdir -p "$out"
convert train mm_eureka MM-Eureka-Dataset
for name in mathvista mathverse math_vision; do convert "$name" "$name" "$name"; done
stage train rl data.train="$(records train)"
prompt=mm_eureka_style system="$(original_s data.system_prompt eval/mathvista/evaluate_mathvista.py:SYSTEM_PROMPT)"
if [[ -n "$system" ]]; then prompt="$folder/question.jinja"; fi  # the bare question follows it there
evaluate rl mathvista mathverse math_vision "$system" eval.prompt="$prompt" rollout.max_response_length=4096
