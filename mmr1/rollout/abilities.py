"""What rollout engines can do, as data: nobody asks for the name of one. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Channel = Literal["shared", "memory", "ipc", "nccl"]
AtNewWeights = Literal["wait", "restart", "continue"]
STRENGTHS: tuple[AtNewWeights, ...] = ("wait", "restart", "continue")
"""Values of ``rollout.queue.at_new_weights``; who can do one can do those before it."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a rollout engine.

    It needs none beyond the default: with the methods of ``protocol.Engine`` it trains in one
    process, ahead, with an environment and on Ray.

    Attributes:
        channels: Ways in which weights can reach it. ``shared``: it samples from a transformers
            model in its process, without Ray the policy itself, so it cannot sample ahead.
            ``memory``: ``load`` is given them, on Ray from its object store. ``ipc`` and ``nccl``:
            it is a ``ReceivingEngine`` on GPUs, by vLLM's own transfer, as the model's files have
            them.
        at_new_weights: The most that it can do with completions under way. ``wait``: ``poll``
            samples all of a ``submit`` to the end, and turns of conversations wait for each other.
            ``restart``: completions end one by one while others come. ``continue``: it also takes
            new weights while it samples; completions continue with these, and each says which
            sampled which of its tokens.
        rests: It is a ``RestingEngine``, so it can share the GPU of a rank.
        adapters: ``load`` takes LoRA adapters alone (``model.lora.merge=false``).
    """

    channels: frozenset[Channel] = frozenset({"memory"})
    at_new_weights: AtNewWeights = "wait"
    rests: bool = False
    adapters: bool = False


PLAIN = Abilities()
"""Of a class that declares nothing."""
