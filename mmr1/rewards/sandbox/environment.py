"""The environment of a worker: a short list. Tokens and passwords lie in what is left out."""

from __future__ import annotations

from collections.abc import Mapping

_KEPT = frozenset(
    ("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY",
     "LC_NUMERIC", "LC_TIME", "TZ", "PATH", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
     "CONDA_PREFIX", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE",
     "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONPLATLIBDIR", "PYTHONUTF8", "PYTHONIOENCODING",
     "PYTHONCOERCECLOCALE", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONOPTIMIZE",
     "PYTHONWARNINGS", "PYTHONMALLOC")
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
    return {**{n: v for n, v in environment.items() if n in _KEPT}, **_FIXED}
