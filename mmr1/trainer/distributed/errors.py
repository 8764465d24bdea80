"""How work on many processes fails."""

from __future__ import annotations


class WorkerLostError(RuntimeError):
    """A rank or an engine died, or the cluster cannot hold them."""


class HungError(RuntimeError):
    """A call that ranks make together did not end in time."""
