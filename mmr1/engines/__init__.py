"""The rollout engines as parts: the settings, needs and abilities of each, without its code.

``mmr1.rollout`` has the code. A part names it, and it is loaded when an engine is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from mmr1.part import Kind
from mmr1.section import ALL, Need, OwnPart, Section

Channel = Literal["shared", "memory", "ipc", "nccl"]
AtNewWeights = Literal["wait", "restart", "continue"]


@dataclass(frozen=True, slots=True)
class Abilities:
    """Abilities of a rollout engine beside the methods of ``mmr1.rollout.protocol.Engine``.

    One without any trains in one process, ahead, with an environment and on Ray.

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


def _ahead_of_itself(c: Any) -> bool:
    shares = "shared" in c.rollout.engine.abilities.channels
    return shares and c.rollout.max_off_policy_steps > 0 and not c.distributed


class EngineConfig(Section):
    """A rollout engine.

    ``preload``: ``module:function`` that begins to load what the engine needs while this process
    does other things.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("rollout.engine.type", "rollout.max_off_policy_steps"),
            _ahead_of_itself,
            "that engine samples from the very model that is being updated; set "
            "rollout.engine=vllm, or several ranks or engines",
            ("rollout.engine=hf", "rollout.max_off_policy_steps=1"),
        ),
        Need(
            ("rollout.engine.type", "rollout.queue.at_new_weights"),
            lambda c: c.rollout.streams and c.rollout.engine.abilities.at_new_weights == "wait",
            "that engine samples a batch to its end; set rollout.engine=vllm, or leave "
            "at_new_weights out",
            ("rollout.engine=hf", "rollout.queue.at_new_weights=restart"),
        ),
        Need(
            ("rollout.engine.type", "rollout.queue.at_new_weights"),
            lambda c: (
                c.rollout.queue.at_new_weights == "continue"
                and c.rollout.engine.abilities.at_new_weights != "continue"
            ),
            "that engine takes no new weights while it samples; set at_new_weights=restart, or "
            "rollout.engine=vllm",
            ("rollout.engine=hf", "rollout.queue.at_new_weights=continue"),
        ),
        Need(
            ("rollout.engine.type", "rollout.engine.colocate"),
            lambda c: c.rollout.colocated and not c.rollout.engine.abilities.rests,
            "that engine cannot leave a GPU to a rank, for which it needs the method rest "
            "(mmr1/rollout/protocol.py) and Abilities(rests=True); leave colocate out",
            ("rollout.engine={type: hf, colocate: true}",),
            commands=ALL,
        ),
        Need(
            ("rollout.engine.type", "model.lora.merge"),
            lambda c: c.model.sync_adapters_only and not c.rollout.engine.abilities.adapters,
            "that engine takes whole weights; leave model.lora.merge out, or set "
            "rollout.engine=vllm",
            ("rollout.engine=hf", "model.lora.merge=false"),
            commands=ALL,
        ),
        Need(
            ("rollout.engine.colocate", "resources.engines", "resources.ranks"),
            lambda c: c.rollout.colocated and c.resources.engines not in (1, c.engines),
            "colocated engines have the GPUs of the ranks; leave resources.engines out",
            ("resources.ranks=2", "resources.engines=3", "rollout.engine.colocate=true"),
        ),
        Need(
            ("rollout.engine.colocate", "rollout.max_off_policy_steps"),
            lambda c: c.rollout.colocated and c.rollout.max_off_policy_steps > 0,
            "engines sleep while the ranks learn, and sample nothing ahead; set "
            "rollout.max_off_policy_steps=0, or leave colocate out",
            ("rollout.engine.colocate=true", "rollout.max_off_policy_steps=1"),
        ),
    )

    abilities: ClassVar[Abilities] = Abilities()
    preload: ClassVar[str] = ""
    if TYPE_CHECKING:
        type: str
    colocate: bool = Field(
        False,
        description="On the GPUs of the ranks: engines sleep while the ranks learn",
    )


class OwnEngine(EngineConfig, OwnPart):
    """An engine of your own."""


engine = Kind(
    "rollout.engine",
    "mmr1.engines",
    base=EngineConfig,
    own=OwnEngine,
    default="vllm",
    inputs=("setting",),
)

__all__ = ["Abilities", "EngineConfig", "OwnEngine", "engine"]
