"""Every key of the configuration, how to open its section, and another valid value for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mmr1.config import Config
from mmr1.config.commands import PACKAGE_SECTIONS
from mmr1.section import OWN, Section, shapes

CORE = [key for key in Config.model_fields if key not in PACKAGE_SECTIONS.names()]
"""Keys and sections that no package declares."""

GIVEN: dict[str, Any] = {
    "model.lora.path": "adapters",
    "algorithm.ptx.data": "ptx.jsonl",
    "algorithm.filter_groups.range.metric": "math",
    "algorithm.advantage.step_rewards": "steps.py:f",
    "algorithm.kl.reference.url": "http://127.0.0.1:9",
    "algorithm.advantage.teacher.url": "http://127.0.0.1:9",
    "environment.tools": ["zoom"],
    "data.curriculum.function": "math",
    "trainer.validation.data": "eval.jsonl",
    "trainer.tracking.report_to": ["tensorboard"],
    "rewards.NAME.type": "judge",
    "rewards.NAME.url": "http://127.0.0.1:9",
    "rewards.NAME.style": "trl",
}
"""Values of keys without a default, besides numbers."""

OTHER: dict[str, Any] = {
    **GIVEN,
    "algorithm.filter_groups.range.between": [0.1, 0.9],
    "algorithm.filter_groups.range.metric": "overall",
    "algorithm.advantage.reward_clip_range": [-1, 0.5],
    "algorithm.rollout_correction.importance_sampling.threshold": 3.0,
    "data.train": "other.jsonl",
    "data.format": "verl",
    "data.chat_template": "chat.jinja",
    "data.chat_template_kwargs": {"enable_thinking": False},
    "environment.tools": ["zoom", "crop"],
    "environment.parser": "own.py:parse",
    "environment.readable": ["/tmp"],
    "eval.data": "other.jsonl",
    "eval.models": {"a": "b"},
    "eval.accuracy_function": "format",
    "eval.accuracy_thresholds": [0.5],
    "eval.sampled.best_of": "math",
    "model.lora.target_modules": ["q_proj"],
    "optimizer.betas": [0.8, 0.99],
    "optimizer.lr_of_parts": {"language_model": 1e-7},
    "resources.ray.address": "auto",
    "rewards": {"exact": {}},
    "rewards.NAME.settings": {"iou": {"space": "0-1"}},
    "rewards.NAME.sandbox.readable": ["/tmp"],
    "rollout.engine.engine_kwargs": {"max_num_seqs": 7},
    "rollout.engine.options": {"a": 1},
    "rollout.stop": ["\n\n"],
    "trainer.checkpoints.metric_for_best_model": "reward/mean",
    "trainer.profile_steps": [2],
    "trainer.tracking.report_to": ["tensorboard", "wandb"],
    "trainer.tracking.tags": ["a"],
}
"""Another value of a key whose type does not give one."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key within one class of every union on its way.

    Attributes:
        section: The class that has it.
        name: Of the field.
        path: Of the key; entries of mappings are ``NAME``.
        opens: ``key=value`` for each union and each required key above and beside it.
        field: Its field.
    """

    section: type[Section]
    name: str
    path: str
    opens: tuple[str, ...]
    field: FieldInfo

    @property
    def of_class(self) -> tuple[str, str]:
        """Class and field, as reads are recorded."""
        return self.section.__name__, self.name

    @property
    def other(self) -> str:
        """``key=value`` with another value than the default."""
        if self.path in OTHER:
            return f"{self.path}={flow(OTHER[self.path])}"
        return f"{self.path}={flow(another(self.field))}"


def every_key(sections: Collection[str] = CORE) -> list[Key]:
    """The leaf keys of sections, without ``type``, whose other values are classes of their own."""
    return [key for key in _keys(Config, "", ()) if key.path.partition(".")[0] in sections]


def _keys(section: type[Section], prefix: str, opens: tuple[str, ...]) -> Iterator[Key]:
    required = {
        name: f"{prefix}{name}={flow(given(f'{prefix}{name}', field))}"
        for name, field in section.model_fields.items()
        if field.is_required() and name not in shapes(section) and name != "type"
    }
    for name, field in section.model_fields.items():
        if name == "type":
            continue
        path = f"{prefix}{name}"
        beside = tuple(text for key, text in required.items() if key != name)
        shape = shapes(section).get(name)
        if shape is None or (shape.is_mapping or path == "data.format"):
            yield Key(section, name, path, (*opens, *beside), field)
        if shape is None:
            continue
        below = f"{path}.NAME" if shape.is_mapping else path
        for kind, inner in shape.variants.items():
            word = f"own.py:{name}" if kind == OWN else kind
            chosen = (f"{below}.type={word}",) if shape.by_type else ()
            yield from _keys(inner, f"{below}.", (*opens, *required.values(), *chosen))


def given(path: str, field: FieldInfo) -> Any:
    """A value for a key without a default."""
    if path in GIVEN:
        return GIVEN[path]
    return "own.py:function" if path.endswith(".use") else another(field)


def another(field: FieldInfo) -> Any:
    """A valid value that is not the default, by the type and the bounds of the field."""
    default = None if field.default is PydanticUndefined else field.default
    return _another(field.annotation, default, [*field.metadata])


def _another(annotation: Any, default: Any, bounds: list[Any]) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _another(arguments[0], default, [*bounds, *_flat(arguments[1:])])
    if origin is Literal:
        return next(value for value in arguments if value != default)
    if origin in (Union, UnionType):
        return _another(next(a for a in arguments if a is not NoneType), default, bounds)
    if annotation is bool:
        return not default
    if annotation is str:
        return "other"
    if annotation in (int, float):
        return _number(annotation, default, bounds)
    if origin is dict:
        return {"a": 1}
    raise AssertionError(f"no other value of {annotation}: add the key to OTHER")


def _flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for each in metadata:
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def _number(kind: type, default: Any, bounds: list[Any]) -> Any:
    candidates = (2, 1, 3) if kind is int else (0.25, 0.75, 1.5, 3.0)
    return next(c for c in candidates if c != default and all(_within(c, b) for b in bounds))


def _within(value: float, bound: Any) -> bool:
    tests = {
        annotated_types.Gt: lambda b: value > b.gt,
        annotated_types.Ge: lambda b: value >= b.ge,
        annotated_types.Lt: lambda b: value < b.lt,
        annotated_types.Le: lambda b: value <= b.le,
    }
    return tests.get(type(bound), lambda b: True)(bound)


def flow(value: Any) -> str:
    """The value as YAML on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
    )
