"""``mmr1 reward what-if``: the advantages of a finished run under another reward."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from mmr1.config import Config, RewardsConfig
from mmr1.config.file import read_written
from mmr1.data.sources import load_mixture
from mmr1.files import atomic_binary
from mmr1.rewards.agreement import correlation_of
from mmr1.rewards.composite import build_composite_reward
from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.item_rows import read_rollouts, scored_row
from mmr1.trainer.algorithms import Algorithm, build_algorithm
from mmr1.trainer.algorithms.advantages import dr_grpo
from mmr1.trainer.algorithms.algorithm import AdvantageInputs
from mmr1.trainer.sampling.experience import component_matrix, first_advantages, reward_matrix
from mmr1.types import Reward, Sample, Status

_SHOWN = 3
_TEXT = 160


@dataclass(frozen=True, slots=True)
class Group:
    """The completions of one prompt of a step, with the rewards of the run and the other ones.

    Attributes:
        row: The prompt in the run's rollouts.
        items: What reward functions read, an item for each completion.
        before, after: Rewards.
        advantages: Of each completion, before and after.
    """

    row: Mapping[str, Any]
    items: Sequence[RewardItem]
    before: Sequence[Reward]
    after: Sequence[Reward] = ()
    advantages: Sequence[tuple[float, float]] = ()

    @property
    def change(self) -> tuple[int, float]:
        """The number of advantages that change sign, and the sum of all changes."""
        flipped = sum(old * new < 0 for old, new in self.advantages)
        return flipped, sum(abs(new - old) for old, new in self.advantages)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A run under another reward.

    Attributes:
        groups: Of all steps that have rollouts, in order.
        notes: What the figures do not include, a sentence each.
    """

    groups: Sequence[Group]
    notes: Sequence[str]

    @property
    def rewards(self) -> list[tuple[Reward, Reward]]:
        """The reward of each completion, before and after."""
        return [pair for g in self.groups for pair in zip(g.before, g.after, strict=True)]

    @property
    def advantages(self) -> list[tuple[float, float]]:
        """The advantage of each completion, before and after."""
        return [pair for group in self.groups for pair in group.advantages]


def what_if(run: Path, rewards: RewardsConfig) -> WhatIf:
    """Score a run's completions by another reward.

    Advantages are those of the run's algorithm over all groups of a step. Where it needs more than
    rewards, they are each reward less the mean of its group.

    Raises:
        ValueError: The folder has no rollouts, or a file in it cannot be read.
    """
    config = read_written(run / "config.yaml")
    algorithm = build_algorithm(config.algorithm)
    rollouts = list(read_rollouts(run))
    records, notes = _records(config, {str(row["id"]) for row, _ in rollouts})
    if _needs_more(algorithm):
        notes.append(
            f"the advantages of algorithm.name={config.algorithm.name} need more than rewards: "
            "these are each reward less the mean of its group"
        )
    console, groups = Console(stderr=True), []
    steps = [list(of_step) for _, of_step in groupby(rollouts, key=lambda r: r[0]["step"])]
    with build_composite_reward(rewards) as reward:
        for step in track(
            steps, "scoring", console=console, transient=True, disable=not console.is_terminal
        ):
            scored = _score(step, records, reward.score)
            before = _advantages(algorithm, scored, [g.before for g in scored], config.rewards)
            after = _advantages(algorithm, scored, [g.after for g in scored], rewards)
            groups += [
                replace(group, advantages=list(zip(old, new, strict=True)))
                for group, old, new in zip(scored, before, after, strict=True)
            ]
    return WhatIf(groups, notes)


def _records(config: Config, ids: set[str]) -> tuple[dict[str, Sample], list[str]]:
    """The records of these prompts, which rollouts do not hold whole; notes on those missing."""
    records: dict[str, Sample] = {}
    reason = "are not in data.train"
    try:
        sources, _ = load_mixture(config.data)
        for samples in sources.values():
            records |= {s.id: s for s in samples if s.id in ids and s.id not in records}
    except (ValueError, OSError) as error:
        reason = f"cannot be looked up ({' '.join(str(error).split())})"
    missing = len(ids - records.keys())
    note = f"{missing} of {len(ids)} prompts {reason}: their further columns are not passed on"
    return records, [note] if missing else []


def _score(
    step: Iterable[tuple[Mapping[str, Any], Sequence[RewardItem]]],
    records: Mapping[str, Sample],
    score: Callable[[Sequence[RewardItem]], Sequence[Reward]],
) -> list[Group]:
    groups = []
    for row, items in step:
        sample = records.get(str(row["id"]), items[0].sample)
        before = [_stored(completion) for completion in row["completions"]]
        groups.append(Group(row, [replace(item, sample=sample) for item in items], before))
    verdicts = iter(score([item for group in groups for item in group.items]))
    return [replace(g, after=[next(verdicts) for _ in g.items]) for g in groups]


def _stored(completion: Mapping[str, Any]) -> Reward:
    return Reward(
        completion["reward"],
        Status(completion["status"]),
        completion["components"],
        completion["error"],
    )


def _needs_more(algorithm: Algorithm) -> bool:
    """True if the algorithm's advantages need more than the rewards of a step."""
    advantage = algorithm.advantage
    return (
        advantage.greedy_baseline
        or advantage.step_supervision
        or advantage.turns is not None
        or advantage.returns is not None
        or bool(advantage.state)
        or algorithm.scales_rewards
        or algorithm.kl_in_reward
    )


def _advantages(
    algorithm: Algorithm,
    groups: Sequence[Group],
    rows: Sequence[Sequence[Reward]],
    config: RewardsConfig,
) -> list[list[float]]:
    """The advantage of each completion of a step."""
    rewards, valid = reward_matrix(rows)
    if _needs_more(algorithm):
        return dr_grpo(rewards, valid).tolist()
    completions = [c for group in groups for c in group.row["completions"]]
    tokens = torch.tensor([[c["tokens"]] for c in completions])
    weights = config.weights
    mask = torch.arange(int(tokens.max())) < tokens
    inputs = AdvantageInputs(
        rewards,
        valid,
        mask & valid.flatten()[:, None],
        torch.zeros(1).expand(mask.shape),
        components=component_matrix(rows, weights),
        weights=torch.tensor(list(weights.values())),
    )
    of_tokens = algorithm.advantage.of_tokens(inputs)
    if algorithm.config.mask_truncated_completions:
        of_tokens = of_tokens * ~torch.tensor([[c["truncated"]] for c in completions])
    return first_advantages(of_tokens).view(rewards.shape).tolist()


def figures(result: WhatIf) -> list[tuple[str, str, str]]:
    """Rows of a table: a name, the figure of the run, and that of the other reward."""
    before, after = zip(*result.rewards, strict=True)
    pairs = result.advantages
    old, new = zip(*pairs, strict=True)

    def both(count: Callable[[Any], object], first: Any, second: Any) -> tuple[str, str]:
        return str(count(first)), str(count(second))

    return [
        ("mean reward", _mean(before), _mean(after)),
        ("without a valid reward", *both(lambda rs: sum(not r.valid for r in rs), before, after)),
        ("groups whose advantages differ from 0", *_with_signal(result.groups)),
        ("completions with advantage > 0", *both(lambda vs: sum(v > 0 for v in vs), old, new)),
        ("completions with advantage < 0", *both(lambda vs: sum(v < 0 for v in vs), old, new)),
        ("advantages that change sign", "", str(sum(a * b < 0 for a, b in pairs))),
        ("advantages that become 0", "", str(sum(a != 0 and b == 0 for a, b in pairs))),
        ("advantages that were 0", "", str(sum(a == 0 and b != 0 for a, b in pairs))),
        ("correlation of rewards", "", _correlation(_both_valid(result.rewards))),
        ("correlation of advantages", "", _correlation(pairs)),
    ]


def _mean(rewards: Sequence[Reward]) -> str:
    values = [r.value for r in rewards if r.value is not None]
    return f"{fmean(values):.4f}" if values else "none"


def _with_signal(groups: Sequence[Group]) -> tuple[str, str]:
    before = sum(any(old for old, _ in group.advantages) for group in groups)
    after = sum(any(new for _, new in group.advantages) for group in groups)
    return str(before), str(after)


def _both_valid(pairs: Iterable[tuple[Reward, Reward]]) -> list[tuple[float, float]]:
    return [(a.value, b.value) for a, b in pairs if a.value is not None and b.value is not None]


def _correlation(pairs: Sequence[tuple[float, float]]) -> str:
    value = correlation_of(pairs)
    return "none: one of them is constant" if value is None else f"{value:.3f}"


def print_result(result: WhatIf, name: str) -> None:
    """Print the figures, the groups that change most, and what is not in the figures."""
    console = Console(width=None if Console().is_terminal else 120, highlight=False)
    completions, steps = len(result.rewards), len({g.row["step"] for g in result.groups})
    console.print(f"{completions} completions of {len(result.groups)} prompts in {steps} steps")
    table = Table(box=None, pad_edge=False)
    for column in ("", "run", escape(name)):
        table.add_column(column, justify="right" if column else "left")
    for line in figures(result):
        table.add_row(*line)
    console.print(table)
    changed = sorted(result.groups, key=lambda group: group.change, reverse=True)
    for group in [g for g in changed if g.change[1]][:_SHOWN]:
        console.print(f"\nstep {group.row['step']}, {escape(str(group.row['id']))}: rewards")
        values = zip(group.items, group.before, group.after, group.advantages, strict=True)
        for item, before, after, (old, new) in values:
            text = " ".join(item.completion.split())[:_TEXT]
            console.print(
                f"  {_shown(before)} -> {_shown(after)}, advantage {old:+.2f} -> {new:+.2f}: "
                f"{escape(text)}"
            )
    for note in result.notes:
        console.print(f"note: {escape(note)}")


def _shown(reward: Reward) -> str:
    return str(reward.status) if reward.value is None else f"{reward.value:g}"


def write_rows(path: Path, result: WhatIf) -> None:
    """Write a JSONL row for each completion, with both rewards and both advantages."""
    with atomic_binary(path) as (file,):
        for group in result.groups:
            values = zip(group.items, group.before, group.after, group.advantages, strict=True)
            for item, before, after, (old, new) in values:
                row = {
                    "step": group.row["step"],
                    "id": group.row["id"],
                    "completion": item.completion,
                    "run": {"reward": before.value, "advantage": old},
                    "advantage": new,
                }
                line = json.dumps(scored_row(row, after), ensure_ascii=False)
                file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
