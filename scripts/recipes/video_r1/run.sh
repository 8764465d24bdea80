#!/usr/bin/env bash
# Video-R1: SFT on chains of thought, then RL, on images and videos.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert cot video_r1 Video-R1-COT-165k
convert train video_r1 Video-R1-260k
stage sft sft data.train="$(records cot)"
stage train rl data.train="$(records train)" "model.path=$(checkpoint sft)"
