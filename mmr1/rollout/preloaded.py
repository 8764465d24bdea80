"""Modules that multiprocessing's fork server imports before it forks, for engines.

Importing it changes the process: its output goes nowhere, and it ends with the one that started it.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from mmr1.lifetime import die_with
from mmr1.rollout.vllm_environment import set_vllm_defaults

_nowhere = os.open(os.devnull, os.O_WRONLY)
for _stream in (sys.stdout, sys.stderr):  # a pipe behind them would not end before the imports do
    os.dup2(_nowhere, _stream.fileno())
os.close(_nowhere)
die_with(os.getppid())
set_vllm_defaults(on_cpu=True)
for _name in (
    *("mmr1.rollout.build", "mmr1.rollout.vllm_transfer"),
    *("vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker"),
):
    importlib.import_module(_name)
gc.freeze()  # no collection in a fork looks at the modules again
