#!/usr/bin/env bash
# MM-Eureka: RLOO on school mathematics, groups without signal left out.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

convert train mm_eureka MM-Eureka-Dataset
stage train rl data.train="$(records train)"
