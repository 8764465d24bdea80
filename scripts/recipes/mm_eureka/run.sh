#!/usr/bin/env bash
# MM-Eureka: RLOO with dynamic sampling on school mathematics.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

export REWARD_LOG_PATH="${REWARD_LOG_PATH:-$out/reward.log}"  # which the original's reward writes
mkdir -p "$out"
convert train mm_eureka MM-Eureka-Dataset
stage train rl data.train="$(records train)"
