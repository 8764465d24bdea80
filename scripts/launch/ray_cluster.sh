#!/usr/bin/env bash
# A Ray cluster by hand. On the first machine:   scripts/launch/ray_cluster.sh head
# On every other:                                scripts/launch/ray_cluster.sh join HEAD_ADDRESS
# Then, on the first, the run:                   scripts/launch/ray_cluster.sh run CONFIG.yaml [key=value ...]
# Afterwards, everywhere:                        scripts/launch/ray_cluster.sh stop
#
# All machines see the same files (model, data, trainer.output_dir) under the same paths.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
port="${RAY_PORT:-6379}"
usage() { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }

case "${1:-}" in
    head) .venv/bin/ray start --head --port "$port" --include-dashboard=false ;;
    join) [[ -n "${2:-}" ]] || usage; .venv/bin/ray start --address "$2:$port" ;;
    run) [[ -n "${2:-}" ]] || usage; shift
         exec .venv/bin/mmr1 train "$@" resources.address=auto --resume ;;
    stop) .venv/bin/ray stop ;;
    *) usage ;;
esac
