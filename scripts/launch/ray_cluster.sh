#!/usr/bin/env bash
# Starts a Ray cluster by hand. First machine:   scripts/launch/ray_cluster.sh head
# Every other machine:                           scripts/launch/ray_cluster.sh join HEAD_ADDRESS
# The run, on the first machine:                 scripts/launch/ray_cluster.sh run CONFIG.yaml [key=value ...]
# At the end, on every machine:                  scripts/launch/ray_cluster.sh stop
#
# All machines must see the model, the data and trainer.output_dir under the same paths.
#
# "head" writes a token to TOKEN_FILE. Copy it to the same path on every other machine. Ray refuses
# whoever does not send the token, but sends it unencrypted, and listens on all interfaces. Keep the
# ports of these machines closed to other networks; docs/scaling.md lists them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
port="${RAY_PORT:-6379}"
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH="${TOKEN_FILE:-$HOME/.config/mmr1/ray_token}"
node_address=() # of the network between the machines, if a machine has several
if [[ -n "${NODE_ADDRESS:-}" ]]; then node_address=(--node-ip-address "$NODE_ADDRESS"); fi
usage() { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }

write_token() {
    [[ -s "$RAY_AUTH_TOKEN_PATH" ]] && return
    mkdir -p "$(dirname "$RAY_AUTH_TOKEN_PATH")"
    (umask 077 && od -An -tx1 -N32 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH")
    echo "token written to $RAY_AUTH_TOKEN_PATH: copy it to every other machine" >&2
}

need_token() {
    [[ -s "$RAY_AUTH_TOKEN_PATH" ]] && return
    echo "error: no token in $RAY_AUTH_TOKEN_PATH; copy that file from the first machine" >&2
    exit 2
}

case "${1:-}" in
    head) write_token
          .venv/bin/ray start --head --port "$port" "${node_address[@]}" --include-dashboard=false ;;
    join) [[ -n "${2:-}" ]] || usage; need_token
          .venv/bin/ray start --address "$2:$port" "${node_address[@]}" ;;
    run) [[ -n "${2:-}" ]] || usage; need_token; shift
         exec .venv/bin/mmr1 train "$@" resources.ray.address=auto --resume ;;
    stop) .venv/bin/ray stop ;;
    *) usage ;;
esac
