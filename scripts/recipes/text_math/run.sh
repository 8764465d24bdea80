#!/usr/bin/env bash
# Text only: GRPO on MATH problems.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train easyr1 math12k
stage train rl data.train="$(records train)"
