"""The environment of a worker: a short list. Tokens and passwords lie in what is left out."""

from __future__ import annotations

from collections.abc import Mapping

# What means the same on every machine: rewards may depend on it.
_OF_RUN = frozenset(
    ("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY",
     "LC_NUMERIC", "LC_TIME", "TZ", "PYTHONHASHSEED")
)  # fmt: skip
_OF_MACHINE = frozenset(
    ("PATH", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME",
     "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONPLATLIBDIR", "PYTHONUTF8",
     "PYTHONIOENCODING", "PYTHONCOERCECLOCALE", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
     "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONMALLOC")
)  # fmt: skip
# Pure-Python integers can be interrupted by a kill like anything else, but gmpy2 aborts the whole
# process when it runs out of memory; and one BLAS thread is enough.
_FIXED = {
    "SYMPY_GROUND_TYPES": "python",
    "MPMATH_NOGMPY": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # torch makes this folder when it is imported; one that is there need not be made.
    "TORCHINDUCTOR_CACHE_DIR": "/tmp",
}


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the trainer's environment a worker gets, and what is fixed for all of them."""
    kept = _OF_RUN | _OF_MACHINE
    return {**{n: v for n, v in environment.items() if n in kept}, **_FIXED}


def run_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What of it means the same on every machine: plugins read it, and rewards depend on it."""
    return {name: value for name, value in environment.items() if name in _OF_RUN}
