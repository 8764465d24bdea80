#!/usr/bin/env bash
# Preferences about images: the data set's pairs, then rounds on the policy's own answers. LOSS is any value of
# dpo.loss.type. JUDGE is the address of an OpenAI-compatible server, and JUDGE_MODEL its model; without JUDGE
# there are no rounds.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert pairs rows RLAIF-V-Dataset --map question=question,image=image
pairs="$(records pairs)" liked=rewards.functions.liked.options
loss=()
if [[ -n "${LOSS:-}" ]]; then loss=(dpo.loss.type="$LOSS"); fi
stage dpo offline data.train="$pairs" "${loss[@]}" ${smoke:+data.train_batch_size=2}
if [[ -n "${JUDGE:-}" ]]; then
    judge=("$liked.url=$JUDGE" "$liked.cache=$out/judge.sqlite")
    if [[ -n "${JUDGE_MODEL:-}" ]]; then judge+=("$liked.model=$JUDGE_MODEL"); fi
    if [[ -n "$smoke" ]]; then  # a random judge must be held to the form of a verdict
        verdicts='{structured_outputs: {choice: ["{\"winner\": \"A\"}", "{\"winner\": \"B\"}"]}}'
        judge+=("$liked.extra=$verdicts" "$liked.temperature=1" data.train_batch_size=2 dpo.rounds=2 dpo.rounds.prompts=4)
    fi
    stage dpo judged data.train="$pairs" "model.path=$(checkpoint offline)" "${loss[@]}" "${judge[@]}"
fi
