#!/usr/bin/env bash
# Iterative GRPO: a first reward model from rankings of the model's own answers, then policy and reward model in turn.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

ranked_by=math tiny=()
if [[ -n "$smoke" ]]; then  # a random model is never right: what ranks it must differ all the same
    ranked_by=repetition
    tiny=(rewards.repetition.weight=0 rewards.repetition.ngram=1 iterative_grpo.ranked_by=liked)
    tiny+=(iterative_grpo.rounds=2 iterative_grpo.rm_steps=2)
fi

convert train easyr1 geometry3k/train
convert geometry3k easyr1 geometry3k/test
stage eval rounds eval.data="$(records train)" eval.sampled.n=8 rewards.liked=null "${tiny[@]}" eval.output_dir="$out/sampled"
rankings="$out/data/rankings.jsonl"
rm -f "$rankings"
"$python" -m datasets_prep rankings "$(records train)" "$out/sampled/completions.jsonl" --function "$ranked_by" --output "$rankings"
stage rm first data.train="$rankings"
stage iterative-grpo rounds data.train="$(records train)" trainer.validation.data="$(records geometry3k)" iterative_grpo.history="$rankings" \
    "rewards.liked.path=$(checkpoint first)" "${tiny[@]}"
