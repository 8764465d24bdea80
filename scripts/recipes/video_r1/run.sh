#!/usr/bin/env bash
# Video-R1: SFT on chains of thought, then RL, on images and videos.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert cot video_r1 Video-R1-COT-165k
convert train video_r1 Video-R1-260k
convert vsi_bench video_r1 eval_vsibench
convert video_mme video_r1 eval_videomme
stage sft sft data.train="$(records cot)"
stage train rl data.train="$(records train)" "model.path=$(checkpoint sft)"
evaluate rl vsi_bench video_mme
