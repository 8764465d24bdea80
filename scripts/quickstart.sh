#!/usr/bin/env bash
# Sets up the environment, then trains a small vision-language model on the CPU: SFT, GRPO with vLLM
# rollouts, and evaluation. Arguments such as seed=1 are configuration overrides; see
# scripts/recipes/quickstart/quickstart.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
start=$(date +%s)
./scripts/setup_env.sh
mkdir -p runs
echo $(($(date +%s) - start)) >runs/.setup_seconds
exec .venv/bin/python scripts/recipes/quickstart/quickstart.py "$@"
