"""The ranks that compute each packed sequence together, and their communication.

A sequence that is too long for one rank is cut by tokens over the ranks of a context
(arXiv:2407.21783, section 3.3.2). All of them have the same groups. Each runs the layers on its own
tokens; keys and values, vision features and what the head gives are all that they exchange.

All of them compute the same loss of the same numbers, and each follows it back to its own tokens
only. So their gradients add up to that of the sequence, as those of other ranks add up to that of
the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

# torch 2.13 renamed them.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Context:
    """The ranks that share sequences with this one.

    Attributes:
        rank: This one's place among them.
        size: Their number, at least 2.
        group: Theirs of ``torch.distributed``.
    """

    rank: int
    size: int
    group: Any

    def gather(self, own: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to gather ``[n, ...]`` of each rank; the returned function waits for it.

        It gives ``[size * n, ...]``, one rank's after the other. No gradient.
        """
        own = own.contiguous()
        every = own.new_empty(self.size * len(own), *own.shape[1:])
        work = _all_gather(every, own, group=self.group, async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return every

        return wait

    def broadcast(self, own: torch.Tensor | None) -> torch.Tensor:
        """Broadcast from rank 0, into main memory; the other ranks give None."""
        shared = [own]
        first = dist.get_global_rank(self.group, 0)
        dist.broadcast_object_list(shared, first, self.group, torch.device("cpu"))
        assert shared[0] is not None
        return shared[0]

    def scatter_sums(self, every: torch.Tensor) -> torch.Tensor:
        """The inverse of ``gather``, for gradients: this rank's ``[n, ...]`` of the ranks' sum."""
        own = every.new_empty(len(every) // self.size, *every.shape[1:])
        _reduce_scatter(own, every, group=self.group)
        return own

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Return what :meth:`gather` gives, at once. Differentiable."""
        return _Gathered.apply(own, self)

    def join(self, own: torch.Tensor) -> torch.Tensor:
        """Sum numbers of which each rank has some, and 0 in place of the others. Differentiable."""
        return _Join.apply(own, self)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        return context.gather(own)()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        # A sum over ranks is rounded once.
        wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
        return ctx.context.scatter_sums(wide).to(grad.dtype), None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, context: Context) -> torch.Tensor:
        every = own.clone()
        dist.all_reduce(every, group=context.group)
        return every

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None  # the loss is counted once: each rank follows it to what it has
