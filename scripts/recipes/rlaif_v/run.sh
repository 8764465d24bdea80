#!/usr/bin/env bash
# Preferences about images: the data set's pairs, then rounds on the policy's own answers. LOSS is any value of
# dpo.loss. JUDGE is the address of an OpenAI-compatible server, and JUDGE_MODEL its model; without JUDGE
# there are no rounds.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert pairs rows RLAIF-V-Dataset --map question=question,image=image
liked=rewards.liked
loss=()
if [[ -n "${LOSS:-}" ]]; then loss=(dpo.loss="$LOSS"); fi
stage dpo offline data.train="$(records pairs)" "${loss[@]}"
if [[ -n "${JUDGE:-}" ]]; then
    judge=("$liked.url=$JUDGE" "$liked.cache=$out/judge.sqlite")
    if [[ -n "${JUDGE_MODEL:-}" ]]; then judge+=("$liked.model=$JUDGE_MODEL"); fi
    if [[ -n "$smoke" ]]; then  # a random judge must be held to the form of a verdict
        verdicts='{structured_outputs: {choice: ["{\"winner\": \"A\"}", "{\"winner\": \"B\"}"]}}'
        judge+=("$liked.extra=$verdicts" "$liked.temperature=1" dpo.rounds.count=2 dpo.rounds.prompts=4)
    fi
    stage dpo judged data.train="$(records pairs)" "model.path=$(checkpoint offline)" "${loss[@]}" "${judge[@]}"
fi
