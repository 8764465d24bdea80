#!/usr/bin/env bash
# EasyR1: Geometry3K with GRPO, DAPO, RLOO or GSPO. ALGORITHM selects one or several (default: grpo).
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train easyr1 geometry3k/train
convert geometry3k easyr1 geometry3k/test
models=()
for name in ${ALGORITHM:-${smoke:+dapo rloo gspo} grpo}; do
    if [[ ! -f "$folder/$exact$name.yaml" ]]; then continue; fi  # EasyR1 has no script with RLOO
    stage train "$name" data.train="$(records train)"
    models+=("eval.models.$name=$(checkpoint "$name")")
done
read -ra asked <<< "$(original_s eval.prompt examples/format_prompt/math.jinja)"
mmr1 eval "$out/$exact$name/config.yaml" "${models[@]}" "eval.data.geometry3k=$(records geometry3k)" \
    "eval.output_dir=$out/${exact}eval" "${asked[@]}" "${overrides[@]}"
