#!/usr/bin/env bash
# Checks and measures everything that needs a GPU, in under 30 minutes and without a network:
#   scripts/gpu_check.sh [--cpu] [--only NAME ...] [--output FOLDER]
# It goes on after a failure, and ends with a table and FOLDER/gpu_check.json (default: runs/gpu_check).
# --cpu runs the parts that make sense without a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec env PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 "${PYTHON:-.venv/bin/python}" -m scripts.gpu.check "$@"
