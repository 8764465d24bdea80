#!/usr/bin/env bash
# Starts a Ray cluster by hand. First machine:   scripts/launch/ray_cluster.sh head
# Every other machine:                           scripts/launch/ray_cluster.sh join HEAD_ADDRESS
# The run, on the first machine:                 scripts/launch/ray_cluster.sh run CONFIG.yaml [key=value ...]
# At the end, on every machine:                  scripts/launch/ray_cluster.sh stop
#
# All machines must see the model, the data and trainer.output_dir under the same paths.
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
