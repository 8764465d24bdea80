"""Start the runs of all commands: what the command line and ``mmr1.Trainer`` share.

Imports no torch: a wrong name is reported before it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmr1.config import Config
from mmr1.estimate.gpus import gpus_of_this_machine
from mmr1.progress import report_activity
from mmr1.rollout.forking import preload_engine
from mmr1.trainer.preflight import check_training

if TYPE_CHECKING:
    from mmr1.rewards import RewardFunction
    from mmr1.trainer.run import Steps

NONE_GIVEN: Mapping[str, RewardFunction] = MappingProxyType({})


def samples(config: Config) -> bool:
    """True if the run samples completions and scores them."""
    in_rounds = config.command == "dpo" and config.dpo.rounds is not None
    return in_rounds or config.command in ("train", "iterate")


def with_gpus(config: Config, *, resume: bool) -> tuple[Config, str | None]:
    """``resources: auto``: ranks and engines for the GPUs of this machine, and why."""
    if not config.resources.auto:
        return config, None
    from mmr1.estimate.proposal import propose

    proposal = propose(config, config.command, gpus_of_this_machine(), resume=resume)
    return proposal.config, proposal.why


def check_run(config: Config, *, resume: bool) -> None:
    """Check the configuration and the file system, and begin to load the engine.

    Raises:
        ValueError: A path or a name is wrong. Nothing has been written.
    """
    check_training(config, resume=resume, samples=samples(config))
    if samples(config):
        preload_engine(config)


def run(config: Config, *, resume: bool = False) -> Path:
    """Run the command of a configuration; returns the directory of the last checkpoint."""
    load_libraries()
    if config.command == "iterate":
        from mmr1.trainer.offline.iterative_grpo import run_iterative_grpo

        return run_iterative_grpo(config, resume=resume)
    from mmr1.trainer.run import to_the_end

    return to_the_end(steps_of(config, resume=resume))


def steps_of(
    config: Config,
    *,
    resume: bool = False,
    functions: Mapping[str, RewardFunction] = NONE_GIVEN,
) -> Steps:
    """The run of ``mmr1 train``, ``sft``, ``dpo`` or ``rm``, step by step.

    Args:
        functions: Reward functions of this process, in place of those of their names in
            ``rewards.functions``.
    """
    load_libraries()
    if config.command == "sft":
        from mmr1.trainer.offline.sft import sft_steps

        return sft_steps(config, resume=resume)
    if config.command == "rm":
        from mmr1.trainer.offline.reward_model import reward_model_steps

        return reward_model_steps(config, resume=resume)
    if config.command == "dpo" and config.dpo.rounds is None:
        from mmr1.trainer.offline.dpo import dpo_steps

        return dpo_steps(config, resume=resume)
    if config.command == "dpo":
        from mmr1.trainer.offline.iterative_dpo import iterative_dpo_steps

        return iterative_dpo_steps(config, resume=resume, functions=functions)
    assert config.command == "train", config.command
    from mmr1.trainer.train import training_steps

    return training_steps(config, resume=resume, functions=functions)


def load_libraries() -> None:
    """Load the slow libraries that every command needs, and say so."""
    with report_activity("loading torch and transformers"):
        import mmr1.trainer.inputs  # noqa: F401  what all commands build on
