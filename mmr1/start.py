"""Start the runs of all commands: what the command line and ``mmr1.Trainer`` share.

Imports no torch: a wrong name is reported before it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from mmr1.config import Config
from mmr1.estimate.gpus import gpus_of_this_machine
from mmr1.progress import report_activity
from mmr1.rollout.engines import preload_engine
from mmr1.trainer.preflight import check_training

if TYPE_CHECKING:
    from mmr1.rewards import RewardFunction
    from mmr1.trainer.run import Steps


class WholeRun(Protocol):
    """``Command.run``: returns the folder of the last checkpoint."""

    def __call__(self, config: Config, *, resume: bool) -> Path: ...


class StepsOfRun(Protocol):
    """``Command.steps``: returns the run as steps."""

    def __call__(
        self, config: Config, *, resume: bool, functions: Mapping[str, RewardFunction]
    ) -> Steps: ...


NONE_GIVEN: Mapping[str, RewardFunction] = MappingProxyType({})


def with_gpus(config: Config, *, resume: bool) -> tuple[Config, str | None]:
    """``resources: auto``: ranks and engines for the GPUs of this machine, and why."""
    if not config.resources.auto:
        return config, None
    from mmr1.estimate.proposal import propose

    proposal = propose(config, gpus_of_this_machine(), resume=resume)
    return proposal.config, proposal.why


def check_run(config: Config, *, resume: bool) -> None:
    """Check the configuration and the file system, and begin to load the engine.

    Raises:
        ValueError: A path or a name is wrong. Nothing has been written.
    """
    check_training(config, resume=resume, samples=config.samples)
    if config.samples:
        preload_engine(config)


def run(config: Config, *, resume: bool = False) -> Path:
    """Run the command of a configuration; returns the directory of the last checkpoint."""
    load_libraries()
    if config.declaration.run is not None:
        whole_run: WholeRun = resolve_name(config.declaration.run)
        return whole_run(config, resume=resume)
    from mmr1.trainer.run import to_the_end

    return to_the_end(steps_of(config, resume=resume))


def steps_of(
    config: Config,
    *,
    resume: bool = False,
    functions: Mapping[str, RewardFunction] = NONE_GIVEN,
) -> Steps:
    """Return the run of a training command, step by step.

    Args:
        functions: Reward functions of this process, in place of those of their names in
            ``rewards``.
    """
    load_libraries()
    assert config.declaration.steps is not None, f"mmr1 {config.command} is no sequence of steps"
    steps: StepsOfRun = resolve_name(config.declaration.steps)
    return steps(config, resume=resume, functions=functions)


def load_libraries() -> None:
    """Load the slow libraries that every command needs, and say so."""
    with report_activity("loading torch and transformers"):
        import mmr1.trainer.inputs  # noqa: F401  what all commands build on
