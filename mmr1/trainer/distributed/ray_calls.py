"""Results of calls to Ray actors, with errors that a user can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmr1.trainer.distributed.errors import WorkerLostError


def get(calls: Sequence[Any]) -> list[Any]:
    """The results in order. The first failure is raised at once, as the worker raised it.

    Raises:
        WorkerLostError: A worker died.
    """
    import ray

    pending = list(calls)
    try:
        while pending:
            finished, pending = ray.wait(pending)
            ray.get(finished)
        return ray.get(list(calls))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        for_the_user = isinstance(cause, ValueError) or type(cause).__module__.startswith("mmr1.")
        if for_the_user:
            raise cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise WorkerLostError(
            f"a rank or an engine died ({' '.join(str(error).split())}); --resume goes on from the "
            "last checkpoint"
        ) from error
