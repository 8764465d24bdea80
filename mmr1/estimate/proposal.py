"""``resources: auto``: numbers of ranks and engines for the GPUs of a machine, by a rule.

- What only learns, or only samples, has all GPUs.
- What learns from its own samples has them all in turn, where the engine can sleep and rollouts do
  not run ahead. What the GPUs do not hold of both goes to main memory while the engine samples.
- Else half of the GPUs learn, or more where half do not hold what is trained; the others sample.
- Reward models have GPUs of their own, as many as hold them.
- What Ray cannot run, or the GPUs do not hold, is one process on one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmr1.config import Config, VllmConfig
from mmr1.config.checks import check
from mmr1.config.file import read_written
from mmr1.config.run_folder import CONFIG
from mmr1.config.trainer import SPLIT
from mmr1.estimate.advice import advice
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.load import Load, measured_or_longest
from mmr1.estimate.memory import GIB, reward_models_bytes
from mmr1.rollout.engines import abilities
from mmr1.trainer.sampling.reward_models import named_reward_models

_OFFLOAD = "rollout.engine.offload_trainer"
_IN_TURN = "rollouts and updates take turns, and each has all GPUs"


@dataclass(frozen=True, slots=True)
class Proposal:
    """The configuration with the numbers that were chosen.

    Attributes:
        why: Choice and its reason; None where there was nothing to choose.
    """

    config: Config
    why: str | None = None


def propose(
    config: Config, gpus: Gpus, *, resume: bool = False, load: Load | None = None
) -> Proposal:
    """Propose numbers for all GPUs of a machine, whatever the configuration has.

    With less than two GPUs nothing is proposed. A run that is resumed keeps its numbers, if the
    machine has so many GPUs.

    Args:
        resume: The run may have been started before.
        load: Tokens of prompts and completions. Default: measured on the training data.

    Raises:
        ValueError: The model's configuration or the data cannot be read; or colocated engines
            are asked for and cannot be.
    """
    if gpus.count < 2:
        return Proposal(_with(config, {}))
    if resume and (before := _of_the_run(config, gpus)) is not None:
        return _proposed(config, before, "the run was started so")
    samples_and_learns = config.samples and config.declaration.trains
    if samples_and_learns or (config.samples and named_reward_models(config)):
        load = load or measured_or_longest(config)[0]
    problems, unfit = _obstacles(config, gpus), None
    for keys, why in () if problems else _choices(config, gpus, load):
        try:
            chosen = _with(config, keys)
            check(chosen)
        except ValueError as error:
            problems.append(str(error))
            continue
        changes = advice(chosen, load, gpus.memory) if load and samples_and_learns else []
        why = "; ".join((*problems[:1], why))
        if not changes:
            return _proposed(config, keys, why)
        problems.append(f"{_shown(keys)} does not fit GPUs of {gpus.memory / GIB:.0f} GiB")
        unfit = keys, f"{why}; by the estimate this does not fit ({changes[0]})"
    if config.rollout.colocated and unfit is not None:
        return _proposed(config, *unfit)
    problems = problems or ["the reward models leave less than two GPUs"]
    reason = "; ".join(dict.fromkeys((problems[0], problems[-1])))
    if config.rollout.colocated:
        raise ValueError(reason)
    one = {"resources.ranks": 1, "resources.engines": 1}
    return _proposed(config, one, f"{reason}. One of {gpus.count} GPUs is used")


def _obstacles(config: Config, gpus: Gpus) -> list[str]:
    """Return what keeps all numbers from being chosen."""
    if not find_spec("ray"):
        return ["Ray, which runs several processes, is not installed (pip install 'mmr1[ray]')"]
    engine, width = config.rollout.engine, config.rollout.gpus_per_engine
    if config.samples and isinstance(engine, VllmConfig) and width > gpus.count:
        return [f"{engine.gpus_as_set} is more than {gpus.count} GPUs"]
    return []


def _choices(config: Config, gpus: Gpus, load: Load | None) -> Iterator[tuple[dict[str, Any], str]]:
    """Keys and why, the best first; the first that the GPUs hold is taken."""
    held = _reward_ranks(config, gpus, load) if load is not None else 0
    count, rollout = gpus.count - held, config.rollout
    width, ahead = rollout.gpus_per_engine, rollout.max_off_policy_steps > 0
    whole = count // width * width
    beside = f", beside {held} for the reward models" if held else ""
    keys: dict[str, Any] = {"resources.reward_ranks": held} if held > 1 else {}
    if count < 2:
        return
    if not config.samples:
        yield {"resources.ranks": count}, f"all {count} GPUs learn"
        return
    if not config.declaration.trains:
        of = "all" if whole == count else f"{whole} of"
        own = (
            {"resources.ranks": whole}
            if rollout.colocated
            else {"resources.engines": whole // width}
        )
        yield keys | own, f"{of} {count} GPUs sample{beside}"
        return
    if rollout.colocated or (abilities(config).rests and not ahead):
        together = keys | _colocated(config, whole)
        if not rollout.offload_trainer:
            yield together, f"{_IN_TURN}{beside}"
        short = "the memory is short for weights of both"
        yield together | {_OFFLOAD: True}, f"{_IN_TURN}; {short}{beside}"
    for ranks in () if rollout.colocated else range(count // 2, count):
        engines, left = divmod(count - ranks, width)
        if not left and max(ranks, engines) > 1:  # the least that Ray runs
            own = {"resources.ranks": ranks, "resources.engines": engines}
            yield keys | own, f"{ranks} of {count} GPUs learn, the others sample{beside}"


def _reward_ranks(config: Config, gpus: Gpus, load: Load) -> int:
    """GPUs for the reward models of a run; 0 without any."""
    if not named_reward_models(config):
        return 0
    room = 0.9 * gpus.memory
    numbers = range(1, gpus.count)
    return next((n for n in numbers if reward_models_bytes(config, load, n) <= room), gpus.count)


def _of_the_run(config: Config, gpus: Gpus) -> dict[str, Any] | None:
    """The numbers that the run was started with.

    None if it was not, if it needs more GPUs, or if other keys ask for something else.
    """
    folder = Path(config.trainer.output_dir)
    files = (folder / CONFIG, folder / "round_1/policy" / CONFIG)
    written = next((file for file in files if file.exists()), None)
    if written is None:
        return None
    before = read_written(written)
    apart = 0 if before.rollout.colocated else before.engines * before.rollout.gpus_per_engine
    if before.distributed and before.resources.ranks + apart > gpus.count:
        return None
    context = config.resources.context_parallel_size
    if before.resources.context_parallel_size != context:
        return None  # it is to run in another way
    keys = {f"resources.{key}": getattr(before.resources, key) for key in SPLIT}
    if before.rollout.colocated and not config.rollout.colocated:
        keys |= _colocated(config, before.resources.ranks)
        keys[_OFFLOAD] = before.rollout.offload_trainer
    return keys


def _colocated(config: Config, ranks: int) -> dict[str, Any]:
    """The keys of so many ranks with vLLM on their GPUs, with the arguments that it was given."""
    return {"resources.ranks": ranks, "rollout.engine.colocate": True}


def _with(config: Config, keys: Mapping[str, Any]) -> Config:
    return config.changed({**keys, "resources.auto": False})


def _proposed(config: Config, keys: Mapping[str, Any], why: str) -> Proposal:
    return Proposal(_with(config, keys), f"{_shown(keys)}, because {why}")


def _shown(keys: Mapping[str, Any]) -> str:
    said = {key: value for key, value in keys.items() if value not in (None, {}, False)}
    return " ".join(f"{key}={'true' if value is True else value}" for key, value in said.items())
