#!/usr/bin/env bash
# Open-R1-Video: multiple choice about videos.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train r1_v open-r1-video-4k
stage train rl data.train="$(records train)"
