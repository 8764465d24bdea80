#!/usr/bin/env bash
# See README.md. Options: --seeds N, --quick.
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
exec "${PYTHON:-python}" -m scripts.claims.run counting "$@"
