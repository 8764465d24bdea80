"""The environment of a worker: a short list. Tokens and passwords lie in what is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping

_KEPT = re.compile(
    r"PATH|HOME|LANG|LANGUAGE|LC_[A-Z]+|TZ|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX"
    r"|PYTHON[A-Z]+|MMR1_[A-Z_]+"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|_KEY")
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
    kept = {
        name: value
        for name, value in environment.items()
        if _KEPT.fullmatch(name) and not _SECRET.search(name)
    }
    return {**kept, **_FIXED}
