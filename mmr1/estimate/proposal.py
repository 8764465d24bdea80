"""Propose numbers of ranks and engines for the GPUs of a machine."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmr1.config import Config, VllmArguments
from mmr1.config.checks import check
from mmr1.config.file import read_written
from mmr1.config.trainer import SPLIT
from mmr1.estimate.advice import advice
from mmr1.estimate.gpu_split import Split, best_split, step_of
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.load import Load, measured_or_longest
from mmr1.estimate.memory import GIB, holds_an_engine, reward_models_bytes, trainer_bytes
from mmr1.estimate.shapes import read_shapes
from mmr1.rollout.engines import engine_type
from mmr1.trainer.sampling.reward_models import named_reward_models


@dataclass(frozen=True, slots=True)
class Choice:
    """Numbers of processes.

    Attributes:
        values: Keys of the configuration.
        why: Why these.
    """

    values: Mapping[str, Any]
    why: str

    def __str__(self) -> str:
        keys = " ".join(
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in self.values.items()
            if value not in (None, {})
        )
        return f"{keys}, because {self.why}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """The configuration with the numbers that were chosen.

    Attributes:
        why: What was chosen, and why; None where there was nothing to choose.
    """

    config: Config
    why: str | None = None


def propose(
    config: Config,
    command: str,
    gpus: Gpus,
    *,
    resume: bool = False,
    load: Load | None = None,
) -> Proposal:
    """Propose numbers for all GPUs of a machine, whatever the configuration has.

    What learns and samples is colocated when it is synchronous, and split when rollouts run ahead.
    What only learns, or only samples, has all GPUs. Where Ray cannot run it, one process does. A
    run that is resumed keeps its numbers, if the machine has so many GPUs. With less than two GPUs
    nothing is proposed.

    Args:
        resume: The run may have been started before.
        load: Tokens of prompts and completions. Default: measured on the training data.

    Raises:
        ValueError: The model's configuration or the data cannot be read; or colocated engines
            are asked for and cannot be.
    """
    if gpus.count < 2:
        return Proposal(config.changed({"resources.auto": False}))
    if resume and (before := _of_the_run(config, gpus)) is not None:
        return Proposal(_with(config, before), str(before))
    refused: list[str] = []
    held = 0
    if command == "eval" or _samples(config, command):
        held = reward_ranks(config, gpus, load)
    left = Gpus(gpus.count - held, gpus.memory)
    for choice in _choices(config, command, left, load, refused):
        if held:
            choice = _beside(choice, held)
        try:
            return Proposal(_checked(_with(config, choice)), str(choice))
        except ValueError as error:
            refused.append(str(error))
    if config.rollout.colocated:
        raise ValueError("; ".join(refused))
    one = Choice(
        {"resources.ranks": 1, "resources.engines": 1},
        f"{'; '.join(refused)}. One of {gpus.count} GPUs is used",
    )
    return Proposal(_with(config, one), str(one))


def reward_ranks(config: Config, gpus: Gpus, load: Load | None = None) -> int:
    """GPUs that the reward models of a run take beside ranks and engines; 0 without any.

    Args:
        load: Default: measured on the training data.
    """
    if not named_reward_models(config):
        return 0
    load = load or measured_or_longest(config)[0]
    numbers = range(1, gpus.count + 1)
    fitting = (n for n in numbers if reward_models_bytes(config, load, n) <= 0.9 * gpus.memory)
    return next(fitting, gpus.count)


def _beside(choice: Choice, held: int) -> Choice:
    """The choice, beside so many ranks for reward models."""
    own = {"resources.reward_ranks": held} if held > 1 else {}
    return Choice({**choice.values, **own}, f"{choice.why}, beside {held} for the reward models")


def _choices(
    config: Config, command: str, gpus: Gpus, load: Load | None, refused: list[str]
) -> Iterator[Choice]:
    """The choices, the best first; reasons against others are added to ``refused``."""
    count = gpus.count
    if importlib.util.find_spec("ray") is None:
        refused.append(
            "Ray, which runs several processes, is not installed (pip install 'mmr1[ray]')"
        )
    elif count < 2:
        refused.append("the reward models leave less than two GPUs")
    elif command == "eval":
        width, engine = config.rollout.gpus_per_engine, config.rollout.engine
        if width > count and isinstance(engine, VllmArguments):
            refused.append(f"{engine.gpus_as_set} is more than {count} GPUs")
            return
        used = count // width * width
        asked = {"resources.engines": used // width}
        if config.rollout.colocated:
            asked = {"resources.ranks": used}
        yield Choice(asked, f"{'all' if used == count else f'{used} of'} {count} GPUs sample")
    elif not _samples(config, command):
        yield Choice({"resources.ranks": count}, f"all {count} GPUs learn")
    else:
        yield from _together(config, gpus, load or measured_or_longest(config)[0], refused)


def _together(config: Config, gpus: Gpus, load: Load, refused: list[str]) -> Iterator[Choice]:
    """The choices for a command that learns from its own samples."""
    rollout, count = config.rollout, gpus.count
    ahead = rollout.max_off_policy_steps > 0
    if rollout.colocated or (engine_type(config).sleeps and not ahead):
        turns = "rollouts and updates take turns, and each has all GPUs"
        width = rollout.gpus_per_engine
        together = colocated(config, max(width, count // width * width))
        offloaded = Choice(
            {**together, "rollout.engine.offload_trainer": True},
            f"{turns}; the memory is short for weights of both",
        )
        choices = [offloaded] if rollout.offload_trainer else [Choice(together, turns), offloaded]
        changes = [advice(_with(config, choice), load, gpus.memory) for choice in choices]
        fitting = [c for c, problems in zip(choices, changes, strict=True) if not problems]
        if fitting:
            yield fitting[0]
        elif rollout.colocated:
            lightest = choices[-1]
            short = f"by the estimate this does not fit ({changes[-1][0]})"
            yield Choice(lightest.values, f"{turns}; {short}")
        else:
            refused.append(f"ranks and engines do not fit the same GPUs ({changes[0][0]})")
    if rollout.colocated:
        return
    if not holds_an_engine(config, read_shapes(config), gpus.memory):
        refused.append(
            f"a GPU of {gpus.memory / GIB:.0f} GiB does not hold an engine's weights; raise "
            "rollout.engine.tensor_parallel_size"
        )
        return
    best = fitting_split(config, load, gpus, ahead)
    if best is None:
        refused.append(
            f"{count} GPUs of {gpus.memory / GIB:.0f} GiB cannot be split into ranks and engines"
            " (mmr1 doctor --estimate CONFIG says what takes memory)"
        )
        return
    mode = (
        f"rollouts run ahead (rollout.max_off_policy_steps={rollout.max_off_policy_steps})"
        if ahead
        else "; ".join((*refused, "rollouts and updates have separate GPUs"))
    )
    yield Choice(
        {"resources.ranks": best.ranks, "resources.engines": best.engines},
        f"{mode}, and of all splits of {count} GPUs this has the shortest step by calculation",
    )


def fitting_split(config: Config, load: Load, gpus: Gpus, ahead: bool) -> Split | None:
    """The split with the shortest step of those that fit into memory; None where none does.

    Args:
        ahead: Rollouts one step ahead of the updates.
    """
    shapes, width = read_shapes(config), config.rollout.gpus_per_engine
    whole = math.lcm(config.resources.context_parallel_size, config.resources.fsdp_size or 1)
    if not holds_an_engine(config, shapes, gpus.memory):
        return None

    def fits(ranks: int) -> bool:
        """True if it fits; two processes of a kind are the least that Ray runs."""
        if ranks % whole or max(ranks, (gpus.count - ranks) // width) < 2:
            return False
        return trainer_bytes(config, shapes, load, ranks) <= gpus.memory

    return best_split(step_of(config, shapes, load), gpus.count, width, ahead, fits)


def _samples(config: Config, command: str) -> bool:
    return command != "eval" and config.for_command(command).samples


def _of_the_run(config: Config, gpus: Gpus) -> Choice | None:
    """The numbers that the run was started with.

    None if it was not, if it needs more GPUs, or if other keys ask for something else.
    """
    folder = Path(config.trainer.output_dir)
    files = (folder / "config.yaml", folder / "round_1/policy/config.yaml")
    written = next((file for file in files if file.exists()), None)
    if written is None:
        return None
    before = read_written(written)
    size = before.rollout.gpus_per_engine
    engine_gpus = 0 if before.rollout.colocated else before.engines * size
    if before.distributed and before.resources.ranks + engine_gpus > gpus.count:
        return None
    context = config.resources.context_parallel_size
    if before.resources.context_parallel_size != context:
        return None  # it is to run in another way
    values = {f"resources.{key}": getattr(before.resources, key) for key in SPLIT}
    if before.rollout.colocated and not config.rollout.colocated:
        values |= colocated(config, before.resources.ranks)
        values["rollout.engine.offload_trainer"] = before.rollout.offload_trainer
    return Choice(values, f"the run was started so ({written})")


def colocated(config: Config, ranks: int) -> dict[str, Any]:
    """The keys of so many ranks with vLLM on their GPUs, with the arguments that it was given."""
    engine = config.rollout.engine
    assert isinstance(engine, VllmArguments), "it sleeps"
    given = engine.model_dump(include={*engine.arguments}, exclude_defaults=True)
    kept = {f"rollout.engine.{key}": value for key, value in given.items()}
    return {"resources.ranks": ranks, "rollout.engine.type": "vllm_colocate", **kept}


def _with(config: Config, choice: Choice) -> Config:
    return config.changed({**choice.values, "resources.auto": False})


def _checked(config: Config) -> Config:
    """Raises ValueError for settings that such processes cannot run."""
    check(config)
    return config
