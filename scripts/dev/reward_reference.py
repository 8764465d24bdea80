"""Write docs/reward_functions.md: each built-in reward, from its signature and its docstring.

python scripts/dev/reward_reference.py            # write it
python scripts/dev/reward_reference.py --check    # fail if it is not what this gives
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmr1.rewards.kind import reward

PAGE = Path(__file__).parents[2] / "docs/reward_functions.md"
INTRODUCTION = """\
# Reward functions

Each built-in reward: what it pays, its gold answer, the columns and settings that it takes, and
examples, which run in tests. They share the [rules of reading](rewards.md#how-an-answer-is-read).
`python scripts/dev/reward_reference.py` writes this page.

| function | pays | gold answer |
|---|---|---|
"""
_ARGUMENT = re.compile(r"(?m)^ {4}(\w+): ((?:.*\n)(?: {8}.*\n)*)")


def page() -> str:
    """All of ``docs/reward_functions.md``."""
    functions = {name: part.declared for name, part in reward.parts.items()}
    rows = (_row(name, function) for name, function in functions.items())
    sections = (line for pair in functions.items() for line in _section(*pair))
    return INTRODUCTION + "".join(rows) + "".join(sections)


def _row(name: str, function: Any) -> str:
    text, arguments, _ = _parts(function)
    summary = text.partition("\n\n")[0]
    return f"| [`{name}`](#{name}) | {_cell(summary)} | {_cell(arguments.get('answer', ''))} |\n"


def _section(name: str, function: Any) -> Iterator[str]:
    text, arguments, examples = _parts(function)
    yield f"\n## {name}\n\n{text.replace('``', '`')}\n"
    parameters = (
        () if inspect.isclass(function) else inspect.signature(function).parameters.values()
    )
    known = [p for p in parameters if p.name in arguments and p.name != "completion"]
    if known:
        yield "\n| name | default | what it is |\n|---|---|---|\n"
    for parameter in known:
        default = f"`{parameter.default!r}`" if parameter.default is not parameter.empty else ""
        default = default if parameter.kind is parameter.KEYWORD_ONLY else "the record's"
        yield f"| `{parameter.name}` | {default} | {_cell(arguments[parameter.name])} |\n"
    if examples:
        yield f"\n```python\n{examples}\n```\n"


def _parts(function: Any) -> tuple[str, dict[str, str], str]:
    """The text of a docstring, its arguments, and its examples."""
    documented, _, examples = (inspect.getdoc(function) or "").partition(">>> ")
    text, _, rest = documented.partition("Raises:\n")[0].partition("Args:\n")
    arguments = {match[1]: match[2] for match in _ARGUMENT.finditer(rest.rstrip() + "\n")}
    return text.strip(), arguments, f">>> {examples}".strip() if examples else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "&#124;")


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
