#!/usr/bin/env bash
# R1-V: geometry on GEOQA-8K.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train geoqa_8k GEOQA_R1V_Train_8K
convert geoqa geoqa_eval geoqa
stage train rl data.train="$(records train)"
mmr1 eval "$out/${exact}rl/config.yaml" "model.path=$(checkpoint rl)" "eval.data.geoqa=$(records geoqa)" \
    "eval.output_dir=$out/eval" "${overrides[@]}"
