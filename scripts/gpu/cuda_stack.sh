#!/usr/bin/env bash
# Tries the CUDA stack on a machine without a GPU, in an environment beside .venv: tests of the default run, and
# vLLM's own resolution of the recipes' engines under cards that are only pretended.
#
#   scripts/gpu/cuda_stack.sh                          builds it, then both
#   scripts/gpu/cuda_stack.sh engines                  builds it, and the engines alone
#   scripts/gpu/cuda_stack.sh suite tests/vision       builds it, and these tests alone
#
#   MMR1_VENV=.venv-cuda    its folder: 9.5 GiB
#   OUTPUT=runs/cuda_stack  for the reports of tests and engines
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export MMR1_VENV=${MMR1_VENV:-.venv-cuda} OMP_NUM_THREADS=1
output=${OUTPUT:-runs/cuda_stack}
MMR1_STACK=cuda ./scripts/setup_env.sh
export PATH="$PWD/$MMR1_VENV/bin:$PATH"
mkdir -p "$output"

suite() {
    # What starts a real vLLM needs a card.
    python -m pytest -m "not slow and not gpu and not vllm" --junitxml "$output/suite.xml" "$@"
}

engines() {
    # vLLM's kernels are linked to the driver's library. This one has the names, and every call fails.
    local vllm stub
    vllm=$(python -c 'import importlib.util as i; print(i.find_spec("vllm").submodule_search_locations[0])')
    stub=$(mktemp -d)
    nm -D --undefined-only "$vllm"/*.so 2>/dev/null | sed -n 's/.* U \(cu[A-Z]\w*\)$/int \1(void) { return 100; }/p' \
        | sort -u >"$stub/stub.c"
    gcc -shared -o "$stub/libcuda.so.1" "$stub/stub.c"
    local card status=0
    for card in h100 a100 rtx4090; do
        echo "engines on $card"
        LD_LIBRARY_PATH="$stub${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
            python scripts/gpu/resolved_engines.py --card "$card" --output "$output" 2>"$output/$card.log" || status=$?
    done
    rm -r "$stub"
    return "$status"
}

what=${1:-all}
shift || true
case "$what" in
    all) engines; suite ;;
    engines) engines ;;
    suite) suite "$@" ;;
    *) echo "cuda_stack: 'engines' or 'suite', not '$what'" >&2; exit 2 ;;
esac
