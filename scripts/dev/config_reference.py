"""Write docs/configuration.md from the configuration tree, where every default lives.

python scripts/dev/config_reference.py            write it
python scripts/dev/config_reference.py --check    exit with 1 when it is not what it should be
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

Every key of the YAML files, with its default; written by
`scripts/dev/config_reference.py`. Any key can be set on the command line as `section.key=value`.
Unknown keys are refused. `--dry-run` prints the resolved whole.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_section(Config, "")])


def _section(section: type[Section], path: str) -> Iterator[str]:
    """A table of a section's own keys, then the sections in it."""
    if path:
        yield f"## `{path}`\n"
        if text := (section.__doc__ or "").strip():
            yield f"{text.splitlines()[0]}\n"
    fields = section.model_fields
    inner = {name: found for name, field in fields.items() if (found := _inner(field.annotation))}
    own = {name: field for name, field in fields.items() if name not in inner}
    if own:
        yield "| key | values | default | |"
        yield "|---|---|---|---|"
        yield from (_row(name, field) for name, field in own.items())
        yield ""
    for name, found in inner.items():
        mapped = get_origin(fields[name].annotation) is dict
        key = f"{name}.NAME" if mapped else name
        yield from _section(found, f"{path}.{key}" if path else key)


def _inner(annotation: Any) -> type[Section] | None:
    """The section that an annotation holds, itself or as the values of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_inner(argument) for argument in get_args(annotation))
    return next((section for section in found if section is not None), None)


def _row(name: str, field: FieldInfo) -> str:
    cells = (f"`{name}`", _values(field.annotation), _default(field), field.description or "")
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _values(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_values(a) for a in arguments if a is not NoneType)
    if origin is not None and hasattr(annotation, "__metadata__"):  # Annotated
        return _values(arguments[0])
    if origin in (list, tuple):
        return f"list of {_values(arguments[0])}"
    if origin is dict:
        return f"{_values(arguments[0])}: {_values(arguments[1])}"
    names = {str: "text", int: "integer", float: "number", bool: "yes or no", Any: "anything"}
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
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
