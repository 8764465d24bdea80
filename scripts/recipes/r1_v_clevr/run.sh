#!/usr/bin/env bash
# R1-V: RL on CLEVR counting, evaluation on SuperCLEVR.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train clevr_70k clevr_cogen_a_train
convert superclevr superclevr_eval superclevr
stage train rl data.train="$(records train)"
evaluate rl superclevr rollout.max_response_length=256 \
    "$(original_s eval.prompt src/eval/test_qwen2vl_counting_superclevr.py:QUESTION_TEMPLATE)"
