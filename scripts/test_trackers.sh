#!/usr/bin/env bash
# Tests the trackers that cannot be installed beside vLLM's pins (wandb, mlflow, swanlab, trackio), in an
# environment of their own on top of .venv. Their services are never asked: all of them write locally.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=.venv/trackers
if [ ! -f "$venv/.installed" ]; then
    .venv/bin/python -m venv "$venv"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$below')" >"$site/below.pth"
    # Their pins of common packages win in here over those of .venv.
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check wandb mlflow swanlab trackio; then
        echo "the package index does not give wandb, mlflow, swanlab and trackio: their tests did not run"
        exit 0
    fi
    touch "$venv/.installed"
fi
exec "$venv/bin/python" -m pytest tests/trainer/runs/test_tracking.py "$@"
