#!/usr/bin/env bash
# Open-R1-Video: multiple choice about videos.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train open_r1_video open-r1-video-4k
stage train rl data.train="$(records train)"
