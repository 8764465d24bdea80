#!/usr/bin/env bash
# R1-Onevision: SFT on formal reasoning, then RL; evaluation on mathematics and its own benchmark.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert demonstrations vlm_r1 R1-Onevision
convert counting r1_v clevr_cogen_a_train --map task=count
for name in math_vision mathverse mathvista; do convert "$name" "$name" "$name"; done
convert r1_onevision_bench rows R1-Onevision-Bench --map question=question,answer=answer,image=image
stage sft sft data.train="$(records demonstrations)"
stage train rl data.train="$(records counting)" "model.path=$(checkpoint sft)"
evaluate rl math_vision mathverse mathvista r1_onevision_bench
