#!/usr/bin/env bash
# LMM-R1: RL on text, then on images; evaluation on mathematics with images.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert text lmm_r1 verifiable_text
convert multimodal lmm_r1 VerMulti-Geo
for name in mathvista math_vision mathverse; do convert "$name" "$name" "$name"; done
stage train text data.train="$(records text)"
stage train multimodal data.train="$(records multimodal)" "model.path=$(checkpoint text)"
evaluate multimodal mathvista math_vision mathverse eval.prompt=lmm_r1_style
