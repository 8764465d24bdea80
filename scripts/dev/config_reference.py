"""Write docs/configuration.md from the configuration models in ``mmr1/config``.

python scripts/dev/config_reference.py            write it
python scripts/dev/config_reference.py --check    exit with 1 if the file is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mmr1.config import Config
from mmr1.config.checks import REFUSED, WARNED, Row
from mmr1.config.commands import READS, SECTIONS
from mmr1.config.presets import PRESETS
from mmr1.config.section import Section, Shape, shapes

PAGE = Path(__file__).parents[2] / "docs/configuration.md"
HEAD = """# Configuration

All keys of the YAML files, with their types and defaults. Set any key on the command line as
`section.key=value`. Unknown keys are errors. `--dry-run` prints the resolved configuration.
`scripts/dev/config_reference.py` writes this page.

- What can be off is `null`, and its keys are inside it: `algorithm.kl.coef=0.01` opens the KL, and
  `algorithm.kl=null` closes it. A section that is open needs the keys marked `???`.
- Alternatives have a `type`, and each type has keys of its own. A word is short for a type:
  `algorithm.loss=gspo`.
- The command line comes over the file, and the file over the preset that `algorithm.name` names.
  They merge key by key, but a section of another type starts afresh. A layer that names a preset
  lays its advantage, loss and filter_groups down in full.

## The tree

The defaults of `mmr1 train`. Behind `#`: what is off, and `or` other types.
"""
COMMANDS = """## Sections of a command

Every command has `model`, `data`, `optimizer`, `trainer` and `resources`. A section that a command
does not read is refused in its file.

| command | its sections | if set |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"```yaml\n{tree()}\n```\n", _commands(), _presets(), *_tables(Config, "")]
    return "\n".join([*parts, _rows("Refused", REFUSED), _rows("Warned of", WARNED)])


def tree() -> str:
    """The keys as YAML with their defaults; what is off is in comments."""
    return "\n".join(_tree(Config, "", top=True))


def _tree(section: type[Section], indent: str, top: bool = False) -> Iterator[str]:
    for key, field in section.model_fields.items():
        if key == "type":
            continue
        shape, value = shapes(section).get(key), _default(field)
        off = value is None or (top and key in SECTIONS and key not in READS["train"].always)
        if shape is None or shape.is_mapping:
            yield f"{indent}{key}: {_short(value)}"
            if shape is not None:
                yield from (
                    f"{indent}#   NAME: {_flow(c, shape, kind)}"
                    for kind, c in shape.variants.items()
                )
        elif off:
            yield f"{indent}{key}: null" if value is None else f"{indent}# {key}:"
            yield from (
                f"{indent}#   or {_flow(c, shape, kind)}" for kind, c in shape.variants.items()
            )
        else:
            yield f"{indent}{key}:"
            first, *others = shape.variants.items()
            if shape.by_type:
                yield f"{indent}  type: {first[0]}"
            yield from _tree(first[1], f"{indent}  ")
            yield from (f"{indent}  # or {_flow(c, shape, kind)}" for kind, c in others)


def _flow(section: type[Section], shape: Shape | None, kind: str) -> str:
    """A section on one line; the sections within are their defaults."""
    shown = [f"type: {kind}"] if shape is not None and shape.by_type else []
    for key, field in section.model_fields.items():
        if key == "type":
            continue
        inner, value = shapes(section).get(key), _default(field)
        if inner is not None and not inner.is_mapping and isinstance(value, Section):
            first, section_of = next(iter(inner.variants.items()))
            shown.append(f"{key}: {_flow(section_of, inner, first)}")
        else:
            shown.append(f"{key}: {_short(value)}")
    return f"{{{', '.join(shown)}}}"


def _short(value: Any) -> str:
    if value is PydanticUndefined:
        return "???"
    if isinstance(value, dict) and value and isinstance(next(iter(value.values())), BaseModel):
        return f"{{{', '.join(f'{name}: {f.weight}' for name, f in value.items())}}}"
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")  # 1e-06 is text in YAML
    text = json.dumps(value, ensure_ascii=False)
    plain = isinstance(value, str) and value.replace("-", "").replace("/", "").isalnum()
    return value if plain else text


def _default(field: FieldInfo) -> Any:
    if field.default is PydanticUndefined and field.default_factory is not None:
        return field.default_factory()  # type: ignore[call-arg]
    return field.default


def _commands() -> str:
    rows = "\n".join(
        f"| `mmr1 {command}` | {_names(reads.always)} | {_names(reads.also)}"
        f"{' with `dpo.rounds` also ' + _names(reads.in_rounds) if reads.in_rounds else ''}"
        f"{'; the file of any command' if reads.any_file else ''} |"
        for command, reads in READS.items()
    )
    return f"{COMMANDS}{rows}\n"


def _names(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _presets() -> str:
    rows = "\n".join(
        f"| `{name}` | {' | '.join(_of_preset(preset[key]) for key in preset)} |"
        for name, preset in PRESETS.items()
    )
    head = "| `algorithm.name` | advantage | loss | filter_groups |\n|---|---|---|---|"
    return f"## Presets\n\n{head}\n{rows}\n"


def _of_preset(values: Any) -> str:
    return "" if values is None else ", ".join(f"`{k}: {v}`" for k, v in values.items())


def _tables(section: type[Section], path: str) -> Iterator[str]:
    """A table of a section's own keys, then its subsections."""
    yield from _table(section)
    for key, shape in shapes(section).items():
        below = f"{path}.{key}" if path else key
        yield from _subsection(shape, f"{below}.NAME" if shape.is_mapping else below)


def _subsection(shape: Shape, path: str) -> Iterator[str]:
    several = len(shape.variants) > 1 or shape.by_type
    if several:
        yield f"## `{path}`\n"
    for kind, section in shape.variants.items():
        word = f"type: {kind}" if shape.by_type else kind
        yield f"### `{path}`, `{word}`\n" if several else f"## `{path}`\n"
        if text := (section.__doc__ or "").strip():
            yield f"{text.splitlines()[0]}\n"
        yield from _tables(section, path)


def _table(section: type[Section]) -> Iterator[str]:
    fields = {key: field for key, field in section.model_fields.items() if key != "type"}
    inner = shapes(section)
    own = {n: f for n, f in fields.items() if n not in inner or f.description}
    if own:
        yield "| key | type | default | description |"
        yield "|---|---|---|---|"
        yield from (_row(name, field, inner.get(name)) for name, field in own.items())
        yield ""


def _row(name: str, field: FieldInfo, shape: Shape | None) -> str:
    kind = "section" if shape is not None else _values(field.annotation)
    if name == "format":
        kind = "string or section"
    cells = (f"`{name}`", kind, _shown_default(field), field.description or "")
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _shown_default(field: FieldInfo) -> str:
    value = _default(field)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return ""
    if isinstance(value, Section):
        kind = getattr(value, "type", None)
        return f"`{kind}`" if kind else ""
    return f"`{_short(value)}`"


def _values(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_values(a) for a in arguments if a is not NoneType))
    if origin is not None and hasattr(annotation, "__metadata__"):  # Annotated
        return _values(arguments[0])
    if origin in (list, tuple):
        return f"list of {_values(arguments[0])}"
    if origin is dict:
        return f"mapping of {_values(arguments[0])} to {_values(arguments[1])}"
    names = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "any"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _rows(title: str, rows: tuple[Row, ...]) -> str:
    lines = "\n".join(
        f"| {_names(row.keys)} | {row.why} | {', '.join(row.commands)} |" for row in rows
    )
    return f"## {title}\n\n| keys | why | commands |\n|---|---|---|\n{lines}\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
