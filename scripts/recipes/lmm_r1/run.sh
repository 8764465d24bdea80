#!/usr/bin/env bash
# LMM-R1: RL on text, then on images.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert text lmm_r1 verifiable_text
convert multimodal lmm_r1 VerMulti-Geo
stage train text data.train="$(records text)"
stage train multimodal data.train="$(records multimodal)" "model.path=$(checkpoint text)"
