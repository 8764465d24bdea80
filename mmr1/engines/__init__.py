"""The rollout engines as parts: the settings, needs and abilities of each, without its code.

``mmr1.rollout`` has the code. A part names it, and it is loaded when an engine is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from mmr1.part import Kind
from mmr1.section import ALL, Need, OwnPart, Section


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a rollout engine can do beside the methods of ``mmr1.rollout.protocol.Engine``.

    One without any trains in one process, ahead, with an environment and on Ray.

    Attributes:
        samples_from_policy: It samples from a transformers model in its process. Without Ray that
            is the policy itself, so it needs no weights and cannot sample ahead.
        samples_on: Completions end one by one while others come. Otherwise ``poll`` samples all of
            a ``submit`` to the end, and the turns of conversations wait for each other.
        updates_in_flight: It takes new weights while completions are under way: they continue with
            these, and each says which sampled which of its tokens.
        receives_on_gpus: It is a ``ReceivingEngine``: weights reach its GPUs by vLLM's own
            transfer, over NCCL or IPC, as the model's files have them. Otherwise ``load`` is
            given them, on Ray from its object store.
        sleeps: It is a ``SleepingEngine``, so it can share the GPU of a rank.
        takes_adapters: ``load`` takes LoRA adapters alone (``model.lora.merge=false``).
    """

    samples_from_policy: bool = False
    samples_on: bool = False
    updates_in_flight: bool = False
    receives_on_gpus: bool = False
    sleeps: bool = False
    takes_adapters: bool = False


def _ahead_of_itself(c: Any) -> bool:
    samples_from_policy = c.rollout.engine.abilities.samples_from_policy
    return samples_from_policy and c.rollout.max_off_policy_steps > 0 and not c.distributed


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
            lambda c: c.rollout.streams and not c.rollout.engine.abilities.samples_on,
            "that engine samples a batch to its end; set rollout.engine=vllm, or leave "
            "at_new_weights out",
            ("rollout.engine=hf", "rollout.queue.at_new_weights=restart"),
        ),
        Need(
            ("rollout.engine.type", "rollout.queue.at_new_weights"),
            lambda c: (
                c.rollout.queue.at_new_weights == "continue"
                and not c.rollout.engine.abilities.updates_in_flight
            ),
            "that engine takes no new weights while it samples; set at_new_weights=restart, or "
            "rollout.engine=vllm",
            ("rollout.engine=hf", "rollout.queue.at_new_weights=continue"),
        ),
        Need(
            ("rollout.engine.type", "rollout.engine.colocate"),
            lambda c: c.rollout.colocated and not c.rollout.engine.abilities.sleeps,
            "that engine cannot leave a GPU to a rank, for which it needs sleep and wake_up "
            "(mmr1/rollout/protocol.py) and the ability sleeps; leave colocate out",
            ("rollout.engine={type: hf, colocate: true}",),
            commands=ALL,
        ),
        Need(
            ("rollout.engine.type", "model.lora.merge"),
            lambda c: c.model.sync_adapters_only and not c.rollout.engine.abilities.takes_adapters,
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
