#!/usr/bin/env bash
# VLM-R1: referring expressions, with IoU as the reward.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

if [[ -n "$smoke" ]]; then export COCO="$out/rows/train"; fi  # which the original's reward reads pictures from
convert train vlm_r1 rec_train --map task=iou
for name in refcoco refcoco_plus refcocog; do convert "$name" vlm_r1 "$name" --map task=iou; done
convert lisa rec lisa_test
stage train rl data.train="$(records train)"
evaluate rl refcoco refcoco_plus refcocog lisa rollout.max_response_length=256 \
    "$(original_s eval.prompt src/eval/test_rec_r1.py:QUESTION_TEMPLATE)"
