#!/usr/bin/env bash
# Sets up the environment, then runs the checks and the tests. Arguments go to pytest:
#   scripts/test.sh -m slow      the long tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup_env.sh
export PATH="$PWD/.venv/bin:$PATH"
ruff check .
ruff format --check .
mypy
lint-imports
exec python -m pytest "$@"
