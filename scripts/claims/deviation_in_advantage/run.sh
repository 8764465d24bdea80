#!/usr/bin/env bash
# Shares of easy and hard questions in the gradient. Options: --seeds N, --quick.
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
exec "${PYTHON:-python}" -m scripts.claims.run deviation_in_advantage "$@"
