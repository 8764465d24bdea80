#!/usr/bin/env bash
# A reward model of steps; it then rewards the steps of a policy, and chooses the best of eight answers.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert steps visualprm VisualPRM400K-v1.1-Raw
convert train easyr1 geometry3k/train
convert geometry3k easyr1 geometry3k/test
stage rm rm data.train="$(records steps)"
stage train rl data.train="$(records train)" trainer.validation.data="$(records geometry3k)" ${smoke:+eval.sampled.n=2} \
    algorithm.advantage.step_rewards="$(checkpoint rm)" rewards.steps.path="$(checkpoint rm)"
