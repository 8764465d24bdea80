"""Which walls this machine lets a worker raise: what the doctor tells."""

from __future__ import annotations

from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.pool import Pool
from mmr1.rewards.sandbox.walls import Missing


def try_walls() -> Missing:
    """Start one worker and ask it; the walls that are missing, and why.

    Raises:
        ValueError: No worker starts at all.
    """
    warm = Job("mmr1.rewards.sandbox.probe:do_nothing", ())
    with Pool(1, warm=warm, allow_weak=True) as pool:
        pool.start()
        return pool.missing


def do_nothing() -> None:
    """A warm-up that warms nothing up."""
