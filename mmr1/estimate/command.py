"""``mmr1 doctor --estimate CONFIG``: the memory that a run needs, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

import psutil
import torch
from rich.console import Console
from rich.table import Table

from mmr1.config import Config
from mmr1.estimate.advice import advice
from mmr1.estimate.gpus import Gpus, gpus_of_this_machine
from mmr1.estimate.load import Load, measured_or_longest
from mmr1.estimate.memory import (
    GIB,
    Estimate,
    bytes_while_sampling,
    estimate,
    saving_bytes,
)
from mmr1.estimate.proposal import propose


def run_estimate(
    config: Config,
    memory_gib: float | None,
    load: Load | None,
    gpus: int | None = None,
) -> bool:
    """Print the memory that a run needs of each device, and advice; True if it fits.

    Without ``load`` it is measured on the training data; the longest is assumed, and said so, where
    they are not there. For several ``gpus``, by default those of this machine, also a proposal of
    ranks and engines.
    """
    missing = None
    if load is None:
        load, missing = measured_or_longest(config)
    memory = _device_bytes() if memory_gib is None else memory_gib * GIB
    on_cpu = memory_gib is None and not torch.cuda.is_available()
    needs, changes = estimate(config, load, on_cpu), advice(config, load, memory, on_cpu)
    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(
        "",
        "item",
        "GiB",
        title=f"mmr1 {config.command}, {config.model.path}, a device of each kind",
    )
    table.columns[2].justify = "right"
    for row in rows(config, needs, memory):
        table.add_row(*row)
    console.print(table)
    has_engine = config.samples
    sent = (
        f"; {needs.sync_bytes / GIB:.2f} GiB of weights to each engine a step" if has_engine else ""
    )
    console.print(
        f"prompt {load.prompt} tokens ({load.vision} of them vision), completion "
        f"{load.completion}{sent}"
    )
    if missing is not None:
        length = f"rollout.max_prompt_length={config.rollout.max_prompt_length}"
        console.print(
            f"assumed: the longest prompts that {length} allows, all vision tokens where the model "
            f"has a tower, because the data are not there ({missing}); --prompt-tokens and "
            "--vision-tokens give other lengths",
            soft_wrap=True,
        )
    for line in changes:
        console.print(f"it will not fit -> {line}", soft_wrap=True)
    gpus = gpus_of_this_machine().count if gpus is None else gpus
    if gpus > 1:
        proposal = propose(config, Gpus(gpus, memory), load=load)
        console.print(proposal.why, soft_wrap=True)
    return not changes


def _device_bytes() -> float:
    if torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(psutil.virtual_memory().total)


def rows(config: Config, result: Estimate, memory: float | None) -> Sequence[tuple[str, str, str]]:
    """``(owner, item, GiB)`` for a table, with a total of each owner."""
    table = []
    for owner in ("trainer", "engine", "reward model"):
        items = [i for i in result.items if i.owner == owner and i.bytes]
        if not items:
            continue
        table += [(owner, i.name, f"{i.bytes / GIB:.2f}") for i in items]
        table.append((owner, "total", f"{result.total(owner) / GIB:.2f}"))
    if not config.distributed and config.samples:
        both = sum(item.bytes for item in result.items)
        table.append(("together", "they share this device", f"{both / GIB:.2f}"))
    if config.rollout.colocated and config.samples:
        held = bytes_while_sampling(config, result)
        table.append(("trainer", "kept while the engine samples", f"{held / GIB:.2f}"))
    saving = f"{saving_bytes(config) / GIB:.2f}"
    table.append(("main memory", "more while a checkpoint is saved", saving))
    if memory is not None:
        table.append(("device", "memory", f"{memory / GIB:.2f}"))
    return table
