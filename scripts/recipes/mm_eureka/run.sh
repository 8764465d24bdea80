#!/usr/bin/env bash
# MM-Eureka: RLOO with dynamic sampling on school mathematics.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train mm_eureka MM-Eureka-Dataset
stage train rl data.train="$(records train)"
