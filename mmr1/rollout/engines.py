"""What a configuration asks of its rollout engine, and what the engine is built of.

Nobody asks for the name of an engine. What differs between engines is one of its ``Abilities``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from mmr1.config import Config
from mmr1.config.checks import check_own_parts
from mmr1.engines import Abilities, engine

if TYPE_CHECKING:
    from mmr1.vision.families.family import ModelFamily
    from mmr1.vision.features import FeatureCache
    from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """The inputs for building an engine.

    Attributes:
        family: Processor and tokens of the model.
        media: Prepared media.
        model: The transformers model that is in this process: the policy's, or a copy for an
            engine that samples from it. None where there is none.
        features: Where those of a frozen vision tower are kept.
        log: File for the output of a process that the engine starts.
        on_ray: The engine has this process, an actor on Ray, to itself. Else it shares the process
            of the trainer.
        colocated: It shares its GPU with a rank, and leaves it to that by sleeping.
        left_out: Beginnings of the names, in the model's files, of weights that a colocated engine
            is never sent: it keeps what it has read.
    """

    config: Config
    family: ModelFamily
    media: MediaCache
    model: Any | None = None
    features: FeatureCache | None = None
    log: Path | None = None
    on_ray: bool = False
    colocated: bool = False
    left_out: tuple[str, ...] = ()


def abilities(config: Config) -> Abilities:
    """Return what the rollout engine can do.

    Raises:
        ValueError: If it is the user's own and cannot be loaded.
    """
    found: Abilities = engine.resolved(config.rollout.engine).abilities
    return found


def transfers_weights(config: Config) -> bool:
    """True if weights reach engines by vLLM's transfer, from GPU to GPU; asked beside a GPU."""
    import torch

    if "nccl" not in abilities(config).channels or config.model.sync_adapters_only:
        return False
    return torch.cuda.is_available()


def hands_over_gpu_memory(config: Config) -> bool:
    """True if the trainer hands an engine on its GPU the memory of its weights (CUDA IPC).

    In one process an engine on several GPUs shares one of them; it gets weights by main memory.
    """
    if not transfers_weights(config):
        return False
    alone = not config.distributed and config.rollout.gpus_per_engine == 1
    return config.rollout.colocated or alone


def samples_together(config: Config) -> bool:
    """True if turns of conversations are sampled together, and all waited for."""
    return config.full_determinism or abilities(config).at_new_weights == "wait"


def preload_engine(config: Config) -> None:
    """Begin to import what the rollout engine of this process will need; does not wait."""
    begin = engine.resolved(config.rollout.engine).preload
    if begin and not config.distributed:
        resolve_name(begin)()


def check_engine(config: Config) -> None:
    """Refuse an engine that cannot do what is asked, or is not installed, before loading.

    Raises:
        ValueError: If it cannot, with what to set or to install.
    """
    check_own_parts(config)
    engine.require(config.rollout.engine)


def returns_experts(config: Config) -> bool:
    """True if completions are to say which experts of a mixture their tokens were sent to."""
    return config.command != "eval" and config.algorithm.compares_experts
