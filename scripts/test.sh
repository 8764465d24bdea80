#!/usr/bin/env bash
# Sets up the environment, then runs the checks and the tests, in up to four processes. Arguments are
# passed to pytest, which then runs in one process:
#   scripts/test.sh -m slow      the long tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup_env.sh
export PATH="$PWD/.venv/bin:$PATH"
ruff check .
ruff format --check .
mypy
lint-imports
if (($# == 0)); then
    cores="$(nproc --all)"
    # One more than cores, because some tests wait: for a deadline, an engine, a killed process.
    set -- -n "$((cores < 4 ? cores + 1 : 4))" --dist loadfile
fi
export OMP_NUM_THREADS=1
exec python -m pytest "$@"
