#!/usr/bin/env bash
# R1-V: RL on CLEVR counting, evaluation on SuperCLEVR.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train r1_v clevr_cogen_a_train --map task=count
convert superclevr r1_v_eval superclevr
stage train rl data.train="$(records train)"
evaluate rl superclevr rollout.max_response_length=256 \
    "$(original_s eval.prompt src/eval/test_qwen2vl_counting_superclevr.py:QUESTION_TEMPLATE)"
