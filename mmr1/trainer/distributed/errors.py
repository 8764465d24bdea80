"""Errors of distributed runs."""

from __future__ import annotations


class WorkerLostError(RuntimeError):
    """A rank or an engine died, or the cluster cannot hold them."""


class HungError(RuntimeError):
    """A collective call did not end in time."""


class TransferError(Exception):
    """Weights did not reach all engines.

    No RuntimeError: of those a rank thinks that another rank is gone.
    """
