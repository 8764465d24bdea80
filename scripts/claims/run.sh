#!/usr/bin/env bash
# Put a claim to the test: scripts/claims/run.sh NAME [--seeds N] [--quick]. See mmr1_contrib/lab/claims/run.py.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec "${PYTHON:-python}" -m mmr1_contrib.lab.claims.run "$@"
