"""What the configuration knows of an algorithm, and where it finds the built-in ones.

A built-in algorithm is a file of ``mmr1.trainer.algorithms.catalog``. The file lists its
algorithms in ``SPECS``. The configuration reads them, so importing such a file must not import
torch: it imports torch inside its functions only.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mmr1.registry import Registry

if TYPE_CHECKING:  # the trainer's types; reading a configuration loads no torch
    from mmr1.config.algorithm import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import Algorithm

CATALOG = "mmr1.trainer.algorithms.catalog"
"""The package whose files are the built-in algorithms. The configuration imports it by name."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on the ``algorithm`` section without which an algorithm cannot run.

    Attributes:
        is_met: Does the section satisfy it?
        message: What is wrong otherwise, and what to set instead.
    """

    is_met: Callable[[AlgorithmConfig], bool]
    message: str


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """One built-in algorithm.

    Attributes:
        name: The value of ``algorithm.name``.
        advantage: Its advantage, as docs/algorithms.md shows it.
        loss: Its loss, likewise.
        papers: arXiv ids; another reference where there is none.
        use: When to choose it.
        build: Makes the algorithm from its section of the configuration.
        defaults: Keys of the section whose default differs for this algorithm, with their values.
        reads: Those keys that this algorithm reads, among the keys that not every algorithm reads.
            Setting a key that some algorithms list and this one does not is refused.
        compares_group: The advantage compares the completions of a prompt, so ``rollout.n`` must
            be 2 or more.
        requires: Conditions on the section.
        reward_function: A reward function that only this algorithm can compute, and that must be
            in ``rewards.functions``; None for most.
    """

    name: str
    advantage: str
    loss: str
    papers: tuple[str, ...]
    use: str
    build: Callable[[AlgorithmConfig], Algorithm]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    compares_group: bool = True
    requires: tuple[Requirement, ...] = ()
    reward_function: str | None = None


@cache
def algorithm_specs() -> Mapping[str, AlgorithmSpec]:
    """The built-in algorithms by name, in the order of their files."""
    return MappingProxyType({spec.name: spec for _, spec in _read_catalog()})


@cache
def algorithm_names() -> Registry:
    """Every name that ``algorithm.name`` may have: built in, an entry point or ``file.py:build``.

    A built-in name stands for the file that defines it; its ``build`` is in its spec.
    """
    builtin = {spec.name: f"{module}:SPECS" for module, spec in _read_catalog()}
    return Registry("algorithm", builtin, group="mmr1.algorithms")


@cache
def algorithm_readers() -> Mapping[str, tuple[str, ...]]:
    """By key: the algorithms that read it, for the keys that not every algorithm reads."""
    readers: dict[str, tuple[str, ...]] = {}
    for spec in algorithm_specs().values():
        for key in spec.reads:
            readers[key] = (*readers.get(key, ()), spec.name)
    return MappingProxyType(readers)


@cache
def _read_catalog() -> tuple[tuple[str, AlgorithmSpec], ...]:
    """Every spec, with the name of the module that defines it."""
    package = importlib.import_module(CATALOG)
    modules = [f"{CATALOG}.{file.name}" for file in pkgutil.iter_modules(package.__path__)]
    entries = [(name, spec) for name in modules for spec in importlib.import_module(name).SPECS]
    names = [spec.name for _, spec in entries]
    assert len(names) == len(set(names)), f"two files define the same algorithm: {names}"
    return tuple(entries)
