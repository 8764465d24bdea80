#!/usr/bin/env bash
# Sets up the environment, then trains a small vision-language model on the CPU: supervised cold
# start, GRPO with vLLM rollouts, evaluation. Overrides such as seed=1 are passed on; see
# scripts/recipes/quickstart/quickstart.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
start=$(date +%s)
./scripts/setup_env.sh
mkdir -p runs
echo $(($(date +%s) - start)) >runs/.setup_seconds
exec .venv/bin/python scripts/recipes/quickstart/quickstart.py "$@"
