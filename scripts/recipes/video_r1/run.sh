#!/usr/bin/env bash
# Video-R1: SFT on chains of thought, then RL, on images and videos; evaluation on six video benchmarks.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

benchmarks=(vsi_bench video_mmmu mmvu mvbench tempcompass video_mme)
if [[ -n "$smoke" ]]; then benchmarks=(vsi_bench video_mme); fi
convert cot video_r1 Video-R1-COT-165k
convert train video_r1 Video-R1-260k
for name in "${benchmarks[@]}"; do convert "$name" video_r1 "Video-R1-eval/eval_${name//_/}.json"; done
stage sft sft data.train="$(records cot)"
stage train rl data.train="$(records train)" "model.path=$(checkpoint sft)"
evaluate rl "${benchmarks[@]}" data.video.max_pixels=200704 rollout.max_response_length=1024 \
    eval.sampled.temperature=0.1 eval.sampled.top_p=0.001 \
    "$(original_s eval.prompt "src/eval_bench.py:QUESTION_TEMPLATE + TYPE_TEMPLATE[problem_type]")"
