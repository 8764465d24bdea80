"""Commands that read a configuration, and the sections that each of them reads.

``train``, ``sft`` and ``eval`` are declared here. Another package declares a command as an entry
point in the group ``mmr1.commands``, and a section of its own in ``mmr1.sections``. In Python a
configuration has every section. In the file of a command, sections that it does not read are
refused, and sections that it reads are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mmr1.registry import Registry
from mmr1.section import CommandKind, Need

if TYPE_CHECKING:
    from mmr1.config.tree import Config


@dataclass(frozen=True, slots=True)
class Command:
    """A command that reads a configuration.

    Attributes:
        name: Name on the command line.
        about: One sentence for ``mmr1 --help``.
        kind: ``policy`` if it updates a policy by the ``algorithm`` section, ``offline`` if it
            learns by another loss, ``evaluation`` if it trains nothing.
        learning_rate: ``optimizer.lr`` where no file sets it.
        reads: Optional sections that it needs; their defaults apply where the file has none.
        may_read: Optional sections that it reads if the file has them.
        reads_if_sampling: Optional sections that it reads only if ``samples`` is true.
        samples: True for a configuration whose run samples completions and scores them.
        evaluates: True if it reads ``trainer.validation`` without sampling.
        steps: ``module:function`` with parameters config, resume and functions, which returns the
            run as ``mmr1.trainer.run.Steps``. None if it cannot be taken step by step.
        run: ``module:function`` with parameters config and resume, which returns the last
            checkpoint's folder. None if ``steps`` is the run.
        needs: Needs of this command alone towards its configuration.
    """

    name: str
    about: str
    kind: CommandKind
    learning_rate: float
    reads: tuple[str, ...]
    may_read: tuple[str, ...] = ()
    reads_if_sampling: tuple[str, ...] = ()
    samples: Callable[[Config], bool] = lambda config: True
    evaluates: bool = False
    steps: str | None = None
    run: str | None = None
    needs: tuple[Need, ...] = ()

    @property
    def trains(self) -> bool:
        """True if weights are updated."""
        return self.kind != "evaluation"

    @property
    def section(self) -> str:
        """Name of the command's own section in a file, if it has one."""
        return self.name.replace("-", "_")

    def sections(self, config: Config) -> tuple[str, ...]:
        """Return the optional sections that a run of this configuration reads."""
        sampling = self.reads_if_sampling if self.samples(config) else ()
        return (*self.reads, *self.may_read, *sampling)


TRAIN = Command(
    "train",
    "Train with reinforcement learning.",
    "policy",
    learning_rate=1e-6,  # TRL's GRPOConfig, verl's and EasyR1's actor.optim.lr
    reads=("rollout", "rewards", "scoring", "algorithm", "eval"),
    may_read=("environment",),
    steps="mmr1.trainer.train:training_steps",
)
SFT = Command(
    "sft",
    "Supervised fine-tuning on demonstrations.",
    "offline",
    learning_rate=2e-5,  # TRL's SFTConfig
    reads=("sft",),
    may_read=("environment",),
    samples=lambda config: False,
    steps="mmr1.trainer.sft:sft_steps",
)
EVAL = Command(
    "eval",
    "Evaluate models on datasets (eval.models, eval.data), with confidence intervals.",
    "evaluation",
    learning_rate=1e-6,  # nothing is trained
    reads=("rollout", "rewards", "scoring", "eval"),
    may_read=("environment",),
)
COMMANDS = Registry(
    "command",
    {each.name: f"{__name__}:{each.name.upper()}" for each in (TRAIN, SFT, EVAL)},
    group="mmr1.commands",
    attribute="NAME",
)
"""Each is a :class:`Command`."""

PACKAGE_SECTIONS = Registry("section", {}, group="mmr1.sections", attribute="NAME")
"""Each is a class of ``mmr1.section.Section``, or a union of such classes."""

ADAPTER_RATE_FACTOR = 10
"""Times the rate of full training (Thinking Machines 2025, *LoRA Without Regret*; TRL's guide)."""


@cache
def command_named(name: str) -> Command:
    """Return the declaration of a command.

    Raises:
        ValueError: If no installed package declares it.
    """
    command = COMMANDS.load(name)
    assert isinstance(command, Command)
    return command


def optional_sections() -> tuple[str, ...]:
    """Return the names of all sections that not every command reads."""
    own = ("rollout", "environment", "rewards", "scoring", "algorithm", "sft", "eval")
    return (*own, *PACKAGE_SECTIONS.names())


def with_learning_rate(tree: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Fill in ``optimizer.lr`` by the command and by ``model.lora``, if the tree has none."""
    optimizer, model = tree.get("optimizer") or {}, tree.get("model") or {}
    if not isinstance(optimizer, Mapping) or not isinstance(model, Mapping) or "lr" in optimizer:
        return dict(tree)
    factor = 1 if model.get("lora") is None else ADAPTER_RATE_FACTOR
    rate = command_named(command).learning_rate * factor
    return {**tree, "optimizer": {**optimizer, "lr": rate}}


def first_layer(command: str) -> dict[str, Any]:
    """Return the defaults of a command: RL's rate is constant (as in verl, EasyR1), others fall."""
    falls = command_named(command).kind == "offline"
    return {"optimizer": {"scheduler": {"type": "linear"}}} if falls else {}


TRAINING_KEYS = (
    *("optimizer", "algorithm", "sft", "data.curriculum"),
    *("model.freeze_vision_tower", "model.gradient_checkpointing", "resources.auto"),
    *("data.train", "data.train_batch_size"),
    *(f"rollout.{key}" for key in ("n", "temperature", "top_p", "top_k", "min_p")),
    *(f"rollout.{key}" for key in ("max_off_policy_steps", "queue", "parity_tolerance")),
    *(f"trainer.{key}" for key in ("max_steps", "total_epochs", "output_dir", "checkpoints")),
    *(f"trainer.{key}" for key in ("save_only_model", "tracking", "logging_steps")),
    *(f"trainer.{key}" for key in ("log_completions_steps", "max_tokens_per_gpu")),
    *(
        f"trainer.{key}"
        for key in ("vision_use_steps", "vision_token_cost", "profile_steps", "step_files")
    ),
    "trainer.step_files",
    "trainer.grace_period_s",
)
"""Keys of a run's file that ``mmr1 eval`` passes over, besides the sections of packages."""


def ignored_keys(keys: Iterable[str], command: str) -> list[str]:
    """Return the keys on a command line that the command skips, though a file may have them."""
    if command_named(command).trains:
        return []
    skipped = (*TRAINING_KEYS, *PACKAGE_SECTIONS.names())
    return [key for key in keys if any(f"{key}.".startswith(f"{each}.") for each in skipped)]


def refuse_unread(tree: Mapping[str, Any], config: Config, source: str) -> None:
    """Refuse the sections of a file that its command does not read.

    Args:
        tree: Values of the file.
        config: The same values as a configuration.
        source: Name of the file.

    Raises:
        ValueError: If there are such sections; names them all. ``mmr1 eval`` takes the file of any
            command and skips them.
    """
    command = command_named(config.command)
    read = command.sections(config)
    unread = [key for key in optional_sections() if key not in read and tree.get(key) is not None]
    if unread and command.trains:
        raise ValueError(
            "\n".join(
                f"{source}: section '{key}': mmr1 {command.name} does not read it; leave it out"
                for key in unread
            )
        )


def command_of(tree: Mapping[str, Any]) -> str:
    """Return the command that a file is for, by its sections; of a run, the one that wrote it."""
    names = [name for name in COMMANDS.names() if name not in ("train", "eval")]
    for name in names:
        if tree.get(command_named(name).section) is not None:
            return name
    if tree.get("algorithm") is not None:
        return "train"
    if tree.get("eval") is not None:
        return "eval"
    samples = any(tree.get(key) is not None for key in ("rollout", "rewards"))
    return "train" if samples else "sft"
