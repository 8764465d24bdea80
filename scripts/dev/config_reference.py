"""Write docs/configuration.md from the configuration models of mmr1 and its packages.

python scripts/dev/config_reference.py            write it
python scripts/dev/config_reference.py --check    exit with 1 if the file is out of date
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mmr1.config import Config
from mmr1.config.commands import COMMANDS as REGISTERED
from mmr1.config.commands import TRAIN, Command, command_named, optional_sections
from mmr1.config.presets import PRESETS
from mmr1.section import OWN, Need, Section, Shape, every_section, shapes

LONG = 90  # characters of a cell
UNBROKEN = {"break_long_words": False, "break_on_hyphens": False}
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
  lays its advantage, loss and filter_groups down in full. A mapping whose keys are your own, such
  as `rewards`, is replaced whole; `rewards.math.weight=2` changes one value.
- A value on the command line is read by the type of its key: a text is that text, without quotes;
  numbers, lists and mappings are YAML, with a space after each colon.

## The tree

The defaults of `mmr1 train`. Behind `#`: what is off, and `or` other types.
"""
COMMANDS = """## Sections of a command

Every command has `model`, `data`, `optimizer`, `trainer` and `resources`. A section that a command
does not read is refused in its file. A command of another package than `mmr1` is an entry point of
that package.

| command | package | its sections | if set | `optimizer.lr` |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"```yaml\n{tree()}\n```\n", _commands(), _presets(), *_tables(Config, "")]
    found = list(dict.fromkeys(needs()))
    titles = (("Refused", False), ("Warned of", True))
    lists = (_rows(title, [n for n in found if n[0].warns == warns]) for title, warns in titles)
    return "\n".join([*parts, *lists])


def needs() -> Iterator[tuple[Need, tuple[str, ...]]]:
    """Yield the needs of all sections and commands, each with the commands that have it."""
    commands = [command_named(name) for name in sorted(REGISTERED.names())]
    for section in every_section(Config):
        for need in section.needs:
            yield need, tuple(each.name for each in commands if each.kind in need.commands)
    for command in commands:
        yield from ((need, (command.name,)) for need in command.needs)


def tree() -> str:
    """The keys as YAML with their defaults; what is off is in comments."""
    return "\n".join(_tree(Config, "", top=True))


def _tree(section: type[Section], indent: str, top: bool = False) -> Iterator[str]:
    for key, field in section.model_fields.items():
        if key == "type":
            continue
        shape, value = shapes(section).get(key), _default(field)
        off = value is None or (top and key in optional_sections() and key not in TRAIN.reads)
        if shape is None or shape.is_mapping:
            yield f"{indent}{key}: {_short(value)}"
            if shape is not None:
                yield from _alternatives(f"{indent}#   NAME: ", shape)
        elif off:
            yield f"{indent}{key}: null" if value is None else f"{indent}# {key}:"
            yield from _alternatives(f"{indent}#   or ", shape)
        else:
            yield f"{indent}{key}:"
            kind, first = next(iter(shape.variants.items()))
            if shape.by_type:
                yield f"{indent}  type: {kind}"
            yield from _tree(first, f"{indent}  ")
            yield from _alternatives(f"{indent}  # or ", shape, but=kind)


def _alternatives(head: str, shape: Shape, but: str | None = None) -> Iterator[str]:
    """Comments with the types of a section, one or several lines for each."""
    below = head.partition("#")[0] + "#".ljust(len(head) - head.index("#") + 1)
    for kind, section in shape.variants.items():
        if kind != but:
            text = _flow(section, shape, kind)
            yield fill(text, 100, initial_indent=head, subsequent_indent=below, **UNBROKEN)


def _flow(section: type[Section], shape: Shape | None, kind: str) -> str:
    """A section on one line; the sections within are their defaults."""
    shown = [f"type: {_word(kind)}"] if shape is not None and shape.by_type else []
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
    commands = map(command_named, REGISTERED.names())
    rows = "\n".join(
        f"| `mmr1 {each.name}` | {_package(each)} | {_names(each.reads)} | {_if_set(each)} "
        f"| {_short(each.learning_rate) if each.trains else ''} |"
        for each in sorted(commands, key=lambda each: each.name)
    )
    return f"{COMMANDS}{rows}\n"


def _if_set(command: Command) -> str:
    """Return the sections that a command reads only under a condition."""
    sampling = _names(command.reads_if_sampling)
    cells = (
        _names(command.may_read),
        f"if it samples: {sampling}" if sampling else "",
        "" if command.trains else "the file of any command",
    )
    return "; ".join(cell for cell in cells if cell)


def _package(command: Command) -> str:
    """Return the top-level package that declares a command."""
    return f"`{REGISTERED.names()[command.name].partition('.')[0]}`"


def _names(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _presets() -> str:
    keys = list(dict.fromkeys(key for preset in PRESETS.values() for key in preset))
    rows = "\n".join(
        f"| `{name}` | {' | '.join(_of_preset(preset.get(key)) for key in keys)} |"
        for name, preset in PRESETS.items()
    )
    head = f"| `algorithm.name` | {' | '.join(keys)} |\n|{'---|' * (len(keys) + 1)}"
    return f"## Presets\n\n{head}\n{rows}\n"


def _of_preset(values: Any) -> str:
    return "" if values is None else ", ".join(f"`{k}: {v}`" for k, v in values.items())


def _tables(section: type[Section], path: str) -> Iterator[str]:
    """A table of a section's own keys, then its subsections."""
    yield from _table({"": section})
    yield from _subsections([section], path)


def _subsections(sections: Iterable[type[Section]], path: str) -> Iterator[str]:
    """The sections within, each once: types of a section may have one in common."""
    found = {key: shape for section in sections for key, shape in shapes(section).items()}
    for key, shape in found.items():
        below = f"{path}.{key}" if path else key
        yield from _subsection(shape, f"{below}.NAME" if shape.is_mapping else below)


def _subsection(shape: Shape, path: str) -> Iterator[str]:
    yield f"## `{path}`\n"
    if len(shape.variants) == 1 and not shape.by_type:
        (section,) = shape.variants.values()
        if text := _summary(section):
            yield f"{text}\n"
        yield from _tables(section, path)
        return
    word = "type: " if shape.by_type else ""
    yield from (_item(f"`{word}{_word(kind)}`", _summary(s)) for kind, s in shape.variants.items())
    yield ""
    yield from _table(shape.variants)
    yield from _subsections(shape.variants.values(), path)


def _word(kind: str) -> str:
    """What stands as the type of a variant in a file."""
    return "file.py:NAME" if kind == OWN else kind


def _summary(section: type[Section]) -> str:
    return (section.__doc__ or "").strip().partition("\n")[0].replace("``", "`")


def _table(variants: Mapping[str, type[Section]]) -> Iterator[str]:
    """The keys of a section, or of all its types with those that have them."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for kind, section in variants.items():
        inner = shapes(section)
        for name, field in section.model_fields.items():
            if name != "type" and (name not in inner or field.description):
                rows.setdefault(_cells(name, field, inner.get(name)), []).append(_word(kind))
    if not rows:
        return
    of = len(variants) > 1
    yield f"| key | type | default |{' of |' if of else ''} description |"
    yield f"|---|---|---|{'---|' if of else ''}---|"
    notes = []
    for (name, kind, default, text), kinds in rows.items():
        first, rest = _split(text)
        if len(kind) > LONG:
            kind, rest = "one of several", f"One of {kind}. {rest}".strip()
        owners = [_owners(kinds, [*map(_word, variants)])] if of else []
        yield f"| {' | '.join([f'`{name}`', kind, default, *owners, first])} |"
        notes += [_item(f"`{name}`", rest)] if rest else []
    yield ""
    yield from dict.fromkeys(notes)
    if notes:
        yield ""


def _owners(kinds: list[str], every: list[str]) -> str:
    """The types that have a key: nothing for all of them, the others where these are fewer."""
    others = [kind for kind in every if kind not in kinds]
    if others and len(others) < len(kinds):
        return f"all but {_names(tuple(others))}"
    return _names(tuple(kinds)) if others else ""


def _split(text: str) -> tuple[str, str]:
    """The first clause of a description, and the rest of one that is long."""
    ends = (e for e in re.finditer(r"(?<!e\.g)[.;] ", text) if _is_outside(text[: e.start()]))
    end = next(ends, None) if len(text) > LONG else None
    return (text[: end.start()], text[end.end() :]) if end else (text, "")


def _is_outside(text: str) -> bool:
    """True if no bracket is open at the end of a text."""
    return text.count("(") == text.count(")")


def _item(head: str, text: str) -> str:
    return fill(f"- {head}: {text}", 100, subsequent_indent="  ", **UNBROKEN)


def _cells(name: str, field: FieldInfo, shape: Shape | None) -> tuple[str, str, str, str]:
    kind = "section" if shape is not None else _values(field.annotation)
    if name == "format":
        kind = "string or section"
    cells = (kind, _shown_default(field), field.description or "")
    return name, *(cell.replace("|", "&#124;") for cell in cells)


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


def _rows(title: str, rows: Iterable[tuple[Need, tuple[str, ...]]]) -> str:
    lines = "\n".join(
        _item(_names(row.keys), f"{row.why} ({', '.join(commands)})") for row, commands in rows
    )
    return f"## {title}\n\nKeys, the reason and the remedy, and the commands.\n\n{lines}\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
