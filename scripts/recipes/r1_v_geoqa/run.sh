#!/usr/bin/env bash
# R1-V: geometry on GEOQA-8K.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train r1_v GEOQA_R1V_Train_8K
convert geoqa r1_v_eval geoqa
stage train rl data.train="$(records train)"
evaluate rl geoqa rollout.max_response_length=1024 \
    "$(original_s eval.prompt src/eval/test_qwen2vl_geoqa.py:QUESTION_TEMPLATE)"
