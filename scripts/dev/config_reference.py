"""Write docs/configuration.md from the configuration models in ``mmr1/config``.

python scripts/dev/config_reference.py            write it
python scripts/dev/config_reference.py --check    exit with 1 if the file is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mmr1.config import Config
from mmr1.config.section import Section

PAGE = Path(__file__).parents[2] / "docs/configuration.md"
HEAD = """# Configuration

All keys of the YAML files, with their types and defaults. Set any key on the command line as
`section.key=value`. Unknown keys are errors. `--dry-run` prints the resolved configuration.
`scripts/dev/config_reference.py` writes this page.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_section(Config, "")])


def _section(section: type[Section], path: str) -> Iterator[str]:
    """A table of a section's own keys, then its subsections."""
    if path:
        yield f"## `{path}`\n"
        if text := (section.__doc__ or "").strip():
            yield f"{text.splitlines()[0]}\n"
    fields = section.model_fields
    inner = {name: held for name, field in fields.items() if (held := _inner(field.annotation))}
    # A section that is off unless set, or a mapping of sections, has a default of its own to show.
    own = {n: f for n, f in fields.items() if n not in inner or not _is_section(f.annotation)}
    if own:
        yield "| key | type | default | description |"
        yield "|---|---|---|---|"
        yield from (_row(name, field) for name, field in own.items())
        yield ""
    for name, subsection in inner.items():
        mapped = get_origin(fields[name].annotation) is dict
        key = f"{name}.NAME" if mapped else name
        yield from _section(subsection, f"{path}.{key}" if path else key)


def _inner(annotation: Any) -> type[Section] | None:
    """The section that an annotation holds, itself or as the values of a mapping."""
    if _is_section(annotation):
        return annotation
    sections = (_inner(argument) for argument in get_args(annotation))
    return next((section for section in sections if section is not None), None)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _row(name: str, field: FieldInfo) -> str:
    cells = (f"`{name}`", _values(field.annotation), _default(field), field.description or "")
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _values(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if _is_section(annotation):
        return "section"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_values(a) for a in arguments if a is not NoneType)
    if origin is not None and hasattr(annotation, "__metadata__"):  # Annotated
        return _values(arguments[0])
    if origin in (list, tuple):
        return f"list of {_values(arguments[0])}"
    if origin is dict:
        return f"mapping of {_values(arguments[0])} to {_values(arguments[1])}"
    names = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "any"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined:
        assert field.default_factory is not None
        value = field.default_factory()  # type: ignore[call-arg]
    if value is None:
        return ""
    if isinstance(value, dict) and any(isinstance(v, Section) for v in value.values()):
        return ", ".join(f"`{name}`" for name in value)
    if isinstance(value, tuple):
        value = list(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
