#!/usr/bin/env bash
# Checks and measures everything that needs a GPU, in about 25 minutes on one H100 and without a network:
#   scripts/gpu_check.sh [--cpu] [--short] [--first] [--only NAME ...] [--resume] [--compare OTHER.json] [--output FOLDER]
# Each check runs in a separate process, results are written as they come to FOLDER/gpu_check.json
# (default: runs/gpu_check), and it continues after a failure. --resume keeps what is ok there. --cpu runs the
# same list with the tiny model, --short a few checks in seconds, --first what one GPU says in nine minutes without
# vLLM and Ray, the dearest facts first. --compare shows another file's figures beside.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec env PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 "${PYTHON:-.venv/bin/python}" -m scripts.gpu.check "$@"
