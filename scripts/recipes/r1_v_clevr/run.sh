#!/usr/bin/env bash
# R1-V: RL on CLEVR counting, evaluation on SuperCLEVR.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train clevr_70k clevr_cogen_a_train
convert superclevr superclevr_eval superclevr
stage train rl data.train="$(records train)"
mmr1 eval "$out/${exact}rl/config.yaml" "model.path=$(checkpoint rl)" "eval.data.superclevr=$(records superclevr)" \
    "eval.output_dir=$out/eval" "${overrides[@]}"
