"""The GPUs of 80 GiB that each stage of each recipe takes, by ``mmr1 doctor --estimate``'s count.

    python scripts/dev/recipe_gpus.py

With the settings that ``run.sh`` and ``run.sh --7b`` give the stages, and prompts and completions
as long as they allow.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmr1.config import Config
from mmr1.config.commands import COMMANDS, command_named
from mmr1.config.file import load_config
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.load import longest_load
from mmr1.estimate.memory import GIB, estimate
from mmr1.estimate.proposal import propose

SCRIPTS = Path(__file__).parents[1]
RECIPES = SCRIPTS / "recipes"
SINGLE = RECIPES / "qwen2_5_vl_3b" / "grpo.yaml"  # started by hand, on one GPU
MEMORY = 0.9 * 80 * GIB
"""A tenth is left for what the estimate does not count."""
TRAINING = [name for name in COMMANDS.names() if command_named(name).trains]
SHAPES = {"3B": "qwen2_5_vl_3b", "7B": "qwen2_5_vl_7b"}


@dataclass(frozen=True, slots=True)
class Stage:
    """One training command of a recipe.

    Attributes:
        name: ``RECIPE/FILE``, without its ending.
        config: Configuration with the published shapes of its model in place of the model.
    """

    name: str
    config: Config

    def on(self, gpus: int) -> Config | None:
        """The configuration on so many GPUs, or None where it does not fit."""
        config = propose(self.config, Gpus(gpus, MEMORY)).config
        if gpus > 1 and not config.distributed:
            return None
        shares = self.config.samples and not config.distributed
        room = MEMORY * (1 - config.gpu_memory_utilization if shares else 1)
        return config if estimate(config, longest_load(config)).total("trainer") <= room else None

    @property
    def fewest(self) -> int:
        """The smallest number of GPUs that it fits."""
        return next(gpus for gpus in range(1, 9) if self.on(gpus) is not None)


def stages(model: str) -> Iterator[Stage]:
    """The stages of all recipes for 3B or 7B models, as their scripts start them."""
    shapes = f"model.path={SCRIPTS / 'gpu' / 'shapes' / SHAPES[model]}"
    for script in sorted(RECIPES.glob("*/run.sh")):
        if script.parent.name.startswith("small_"):  # trained on a CPU
            continue
        for command, path, *overrides in _commands(script, model):
            name = f"{script.parent.name}/{Path(path).stem}"
            config = load_config(Path(path), [*overrides, shapes], command)
            yield Stage(name, config)
    if model == "3B":
        yield Stage("qwen2_5_vl_3b/grpo", load_config(SINGLE, [shapes]))


def _commands(script: Path, model: str) -> Iterator[list[str]]:
    """The arguments of the training commands: the script runs with echo for Python."""
    lines: dict[str, None] = {}
    for path in sorted(script.parent.glob("*.yaml")):
        if path.name.startswith("exact_"):  # no script runs them
            continue
        shown = subprocess.run(
            [script, *(["--7b"] if model == "7B" else [])],
            env={**os.environ, "PYTHON": "echo", "ALGORITHM": path.stem, "JUDGE": "http://judge"},
            cwd=SCRIPTS.parent,
            capture_output=True,
            text=True,
            check=False,  # a script ends where it looks for a checkpoint
        )
        lines |= dict.fromkeys(shown.stdout.splitlines())
    for words in map(str.split, lines):
        if words[:2] == ["-m", "mmr1.cli"] and words[2] in TRAINING:
            # No value: a checkpoint, which is not there yet.
            chosen = [
                w
                for w in words[2:]
                if w != "--resume" and not w.startswith("model.path=") and not w.endswith("=")
            ]
            yield [_published(word) for word in chosen]


def _published(word: str) -> str:
    """An override with the folder of a model's shapes in the place of its name."""
    key, _, value = word.partition("=")
    if key != "algorithm.advantage.teacher.path":
        return word
    (shapes,) = (shapes for size, shapes in SHAPES.items() if f"-{size}-" in value)
    return f"{key}={SCRIPTS / 'gpu' / 'shapes' / shapes}"


def main() -> None:
    fewest: dict[str, dict[str, int]] = {}
    for model in SHAPES:
        for stage in stages(model):
            fewest.setdefault(stage.name, {})[model] = stage.fewest
    print("| stage | Qwen2.5-VL-3B | Qwen2.5-VL-7B |")
    print("|---|---|---|")
    for name, of_model in sorted(fewest.items()):
        print(f"| `{name}.yaml` | {of_model['3B']} | {of_model.get('7B', '')} |")


if __name__ == "__main__":
    main()
