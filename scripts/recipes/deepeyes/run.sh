#!/usr/bin/env bash
# DeepEyes: the policy looks at parts of a picture before it answers. RL without a cold start.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train verl DeepEyes-Datasets-47k --map task=math
stage train rl data.train="$(records train)"
