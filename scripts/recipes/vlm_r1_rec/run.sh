#!/usr/bin/env bash
# VLM-R1: referring expressions, with IoU as the reward.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

if [[ -n "$smoke" ]]; then export COCO="$out/rows/train"; fi  # which the original's reward reads pictures from
convert train vlm_r1_rec_train rec_train
convert refcoco vlm_r1_rec_train rec_val
stage train rl data.train="$(records train)"
mmr1 eval "$out/${exact}rl/config.yaml" "model.path=$(checkpoint rl)" "eval.data.refcoco=$(records refcoco)" \
    "eval.output_dir=$out/eval" "${overrides[@]}"
