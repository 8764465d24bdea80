#!/usr/bin/env bash
# DeepEyes: the policy looks at parts of a picture before it answers. RL without a cold start.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train deepeyes DeepEyes-Datasets-47k
stage train rl data.train="$(records train)"
