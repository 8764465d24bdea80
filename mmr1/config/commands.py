"""The sections that each command reads.

A configuration has every section in Python. Of the file of a command, those that it does not read
are refused, and those that it reads are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

Command = Literal["train", "iterate", "sft", "dpo", "rm", "eval"]
SECTIONS = ("rollout", "environment", "rewards", "algorithm", "sft", "dpo", "rm", "iterate", "eval")
"""The sections that not every command reads."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The sections that a command reads.

    Attributes:
        always: Sections that it needs, whose defaults apply where the file has none.
        also: Sections that it reads if the file has them.
        in_rounds: Sections that it reads with ``dpo.rounds`` only.
        any_file: It takes the file of any command, and passes over what it does not read.
    """

    always: tuple[str, ...]
    also: tuple[str, ...] = ()
    in_rounds: tuple[str, ...] = ()
    any_file: bool = False


READS: Mapping[Command, Reads] = MappingProxyType(
    {
        "train": Reads(("rollout", "rewards", "algorithm", "eval"), ("environment",)),
        "iterate": Reads(("rollout", "rewards", "algorithm", "iterate", "eval"), ("environment",)),
        "sft": Reads(("sft",), ("environment",)),
        "dpo": Reads(("dpo",), in_rounds=("rollout", "rewards", "eval")),
        "rm": Reads(("rm",)),
        "eval": Reads(("rollout", "rewards", "eval"), ("environment",), any_file=True),
    }
)


LEARNING_RATES: Mapping[Command, float] = MappingProxyType(
    {
        "train": 1e-6,  # TRL's GRPOConfig, verl's and EasyR1's actor.optim.lr
        "iterate": 1e-6,
        "dpo": 1e-6,  # TRL's DPOConfig
        "sft": 2e-5,  # TRL's SFTConfig
        "rm": 1e-4,  # TRL's RewardConfig
        "eval": 1e-6,  # nothing is trained
    }
)
"""``optimizer.lr`` where no file has it."""
OF_ADAPTERS = 10
"""Times the rate of full training (Thinking Machines 2025, *LoRA Without Regret*; TRL's guide)."""


def with_learning_rate(tree: Mapping[str, Any], command: Command) -> dict[str, Any]:
    """The tree with ``optimizer.lr`` by the command and by ``model.lora``, if it has none."""
    optimizer, model = tree.get("optimizer") or {}, tree.get("model") or {}
    if not isinstance(optimizer, Mapping) or not isinstance(model, Mapping) or "lr" in optimizer:
        return dict(tree)
    times = 1 if model.get("lora") is None else OF_ADAPTERS
    return {**tree, "optimizer": {**optimizer, "lr": LEARNING_RATES[command] * times}}


def first_layer(command: Command) -> dict[str, Any]:
    """The defaults of a command: RL's rate is constant (as in verl, EasyR1), others fall."""
    falls = command in ("sft", "dpo", "rm")
    return {"optimizer": {"scheduler": {"type": "linear"}}} if falls else {}


TRAINED_BY = (
    *("optimizer", "algorithm", "sft", "dpo", "rm", "iterate", "data.curriculum"),
    *("model.freeze_vision_tower", "model.gradient_checkpointing", "resources.auto"),
    *("data.train", "data.train_batch_size"),
    *(f"rollout.{key}" for key in ("n", "temperature", "top_p", "top_k", "min_p")),
    *(f"rollout.{key}" for key in ("max_off_policy_steps", "streaming", "parity_tolerance")),
    *(f"trainer.{key}" for key in ("max_steps", "total_epochs", "output_dir", "checkpoints")),
    *(f"trainer.{key}" for key in ("save_only_model", "tracking", "logging_steps")),
    *(f"trainer.{key}" for key in ("log_completions_steps", "max_tokens_per_gpu")),
    *(f"trainer.{key}" for key in ("vision_use_steps", "vision_token_cost", "profile_steps")),
    "trainer.grace_period_s",
)
"""Keys of a run's file that ``mmr1 eval`` passes over."""


def ignored_keys(keys: Iterable[str], command: Command) -> list[str]:
    """The keys on a command line that the command does not read, though a file may have them."""
    if not READS[command].any_file:
        return []
    return [key for key in keys if any(f"{key}.".startswith(f"{each}.") for each in TRAINED_BY)]


def sections_of(command: Command, in_rounds: bool) -> tuple[str, ...]:
    """The sections that a command reads, of those in :data:`SECTIONS`."""
    reads = READS[command]
    return (*reads.always, *reads.also, *(reads.in_rounds if in_rounds else ()))


def refuse_unread(tree: Mapping[str, Any], command: Command, source: str) -> None:
    """Refuse the sections that a command does not read.

    Raises:
        ValueError: Names them all.
    """
    dpo = tree.get("dpo")
    in_rounds = isinstance(dpo, Mapping) and dpo.get("rounds") is not None
    read = sections_of(command, in_rounds)
    unread = [key for key in SECTIONS if key not in read and tree.get(key) is not None]
    if unread and not READS[command].any_file:
        raise ValueError(
            "\n".join(
                f"{source}: section '{key}': mmr1 {command} does not read it; leave it out"
                for key in unread
            )
        )


def command_of(tree: Mapping[str, Any]) -> Command:
    """The command that a file is for, by its sections; of a run, the command that wrote it."""
    named: tuple[Command, ...] = ("iterate", "dpo", "rm", "sft")
    for command in named:
        if tree.get(command) is not None:
            return command
    if tree.get("algorithm") is not None:
        return "train"
    if tree.get("eval") is not None:
        return "eval"
    samples = any(tree.get(key) is not None for key in ("rollout", "rewards"))
    return "train" if samples else "sft"
