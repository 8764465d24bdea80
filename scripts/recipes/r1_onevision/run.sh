#!/usr/bin/env bash
# R1-Onevision: SFT on formal reasoning, then RL.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert demonstrations r1_onevision R1-Onevision
convert counting clevr_70k clevr_cogen_a_train
stage sft sft data.train="$(records demonstrations)"
stage train rl data.train="$(records counting)" "model.path=$(checkpoint sft)"
