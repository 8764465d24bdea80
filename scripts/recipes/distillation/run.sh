#!/usr/bin/env bash
# On-policy distillation on Geometry3K, and SFT on the teacher's samples beside it. TEACHER is a model, or the
# address of a vLLM server, which gives no samples: then there is no SFT.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

teacher="${TEACHER:-Qwen/Qwen2.5-VL-7B-Instruct}" right=1
if [[ -n "$smoke" ]]; then teacher="$out/model" right=0; fi  # a random model is never right

convert train easyr1 geometry3k/train
convert geometry3k easyr1 geometry3k/test
if [[ "$teacher" != http* ]]; then
    mmr1 eval "$folder/rl.yaml" "${shrunk[@]}" "model.path=$teacher" "eval.data=$(records train)" \
        eval.sampled.n=4 "eval.output_dir=$out/sampled" "${overrides[@]}"
    rm -f "$out/data/of_teacher.jsonl"
    "$python" -m datasets_prep demonstrations "$(records train)" "$out/sampled/completions.jsonl" \
        --function math --at-least "$right" --per-record 4 --output "$out/data/of_teacher.jsonl"
    stage sft sft data.train="$out/data/of_teacher.jsonl"
    taught=(algorithm.advantage.teacher.path="$teacher")
else
    taught=(algorithm.advantage.teacher.type=server algorithm.advantage.teacher.url="$teacher")
fi
stage train rl data.train="$(records train)" "${taught[@]}"
models=(eval.models.on_policy="$(checkpoint rl)")
if [[ "$teacher" != http* ]]; then models+=(eval.models.sft="$(checkpoint sft)"); fi
mmr1 eval "$out/rl/config.yaml" "${models[@]}" "eval.data.geometry3k=$(records geometry3k)" \
    "eval.output_dir=$out/eval" "${overrides[@]}"
