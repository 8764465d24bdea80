#!/usr/bin/env bash
# Put a claim to the test: scripts/claims/run.sh NAME [--seeds N] [--quick]. See scripts/claims/run.py.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec "${PYTHON:-python}" -m scripts.claims.run "$@"
