"""The parts by kind, for ``mmr1 list``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import fill

from pydantic.fields import FieldInfo

from mmr1.algorithms import advantage, loss
from mmr1.engines import engine
from mmr1.part import Kind, Part, setting_names
from mmr1.registry import suggest
from mmr1.rewards.kind import reward

WIDTH = 80
KINDS: Mapping[str, Kind] = {
    "advantage": advantage,
    "loss": loss,
    "reward": reward,
    "engine": engine,
}


def listing(kind: str | None = None, name: str | None = None) -> Iterator[str]:
    """Yield the lines of a list: of all kinds, of the parts of a kind, or of what a part says.

    Raises:
        ValueError: If there is no such kind or part.
    """
    if kind is None:
        for word, each in KINDS.items():
            yield _item(f"{word:<11}", ", ".join(each.parts))
        return
    if kind not in KINDS:
        raise ValueError(f"there is no kind '{kind}'{suggest(kind, KINDS)}; {', '.join(KINDS)}")
    parts = KINDS[kind].parts
    if name is None:
        for part in parts.values():
            keys = ", ".join(setting_names(part))
            yield _item(f"{part.name:<23}", f"{part.section.__doc__} {keys}".strip())
    elif name in parts:
        yield from _part(parts[name], KINDS[kind])
    else:
        raise ValueError(f"there is no {kind} '{name}'{suggest(name, parts)}; {', '.join(parts)}")


def _part(part: Part, kind: Kind) -> Iterator[str]:
    yield fill(f"{part.key}.type={part.name}: {part.section.__doc__}", WIDTH)
    for (key, field), shown in zip(_settings(part), setting_names(part), strict=True):
        yield _item(f"  {shown:<28} ", field.description or key)
    for need in (need for need in part.section.needs if need not in kind.base.needs):
        yield _item("  warns: " if need.warns else "  needs: ", need.why)
    yield _item("  from ", ", ".join(part.papers))


def _settings(part: Part) -> list[tuple[str, FieldInfo]]:
    return [(key, field) for key, field in part.section.model_fields.items() if key != "type"]


def _item(head: str, text: str) -> str:
    indent = " " * min(len(head), 30)
    return fill(text, WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
