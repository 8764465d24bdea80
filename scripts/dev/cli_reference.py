"""Write docs/commands.md: every command with its arguments and options.

python scripts/dev/cli_reference.py            # write it
python scripts/dev/cli_reference.py --check    # fail if it is not what this gives
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from datasets_prep.data_cli import app as data_app
from mmr1.cli import app

PAGE = Path(__file__).parents[2] / "docs/commands.md"
INTRODUCTION = """\
# Commands

Every command, as `--help` has it. Overrides are `key.path=value`: see
[Configuration](configuration.md). `python scripts/dev/cli_reference.py` writes this page.
"""


def page() -> str:
    """All of ``docs/commands.md``."""
    parts = [INTRODUCTION]
    for program, of in (("mmr1", app), ("mmr1-data", data_app)):
        parts.append(f"## {program}\n")
        parts += _commands(program, typer.main.get_command(of))
    return "\n".join(parts).rstrip() + "\n"


def _commands(name: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        for word, below in sorted(inner.items()):
            yield from _commands(f"{name} {word}", below)
        return
    yield f"### {name}\n"
    yield f"{_one_line(command.help or '')}\n"
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        yield "\n".join(["| | default | |", "|---|---|---|", *rows, ""])


def _row(parameter: Any) -> str | None:
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return None
    is_argument = parameter.param_type_name == "argument"
    name = parameter.name.upper() if is_argument else ", ".join(parameter.opts)
    default = parameter.default
    if callable(default) or default in (None, False, ()):
        default = "required" if parameter.required else ""
    value = getattr(default, "value", default)
    shown = value if value in ("", "required") else f"`{value}`"
    return f"| `{name}` | {shown} | {_cell(parameter.help)} |"


def _cell(text: str | None) -> str:
    return _one_line(text or "").replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> int:
    if "--check" in sys.argv:
        return int(not PAGE.is_file() or PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
