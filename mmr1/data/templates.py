"""Prompt templates: the text around a question, by name, as a file, or as a constant of a file.

The variables of a template are ``question`` (write it exactly once; EasyR1's and verl's name for it
is ``content``), ``options``, ``task``, ``media`` (the kinds of the media, in order) and ``row``
(the columns of the record). ``{% set system %}…{% endset %}`` sets a system message for
conversations without one.

``FILE.py:CONSTANT`` takes the text from another project's file, by parsing it. Its field of
``str.format`` is the question. ``FILE.py:A + B[column]`` joins several; a column of the record
chooses one of a dict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Formatter
from typing import Any

from jinja2 import Template, TemplateError

from mmr1 import templates
from mmr1.data.constants import Choice, constant
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import ContentPart, MediaRef, Message, Sample, TextPart

_MARK = "\ue000question\ue000"
_QUESTION = f" {_MARK} "
"""With blanks, which a template's filter ``trim`` takes away."""
_TERM = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:\[(?P<key>[^\]]+)\])?")


def load_template(name: str) -> Template:
    """A built-in template by name, a ``.jinja`` or ``.txt`` file, or constants of a ``.py`` file.

    Raises:
        ValueError: No such template, or its syntax is wrong.
    """
    file, colon, terms = name.rpartition(":")
    if colon and file.endswith(".py"):
        return _of_constants(Path(file).expanduser(), terms)
    if name.endswith(".txt"):
        text = templates.text_of(name, "data.prompt_template")
        if "{{" not in text:
            return _jinja(_of_format(text, name), {})
    return templates.load_template(name, _folder(), "data.prompt_template")


def _of_constants(file: Path, terms: str) -> Template:
    parts: list[str] = []
    tables: dict[str, dict[str, str]] = {}
    for number, term in enumerate(terms.split("+")):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            raise ValueError(
                f"data.prompt_template '{file}:{terms}': '{term.strip()}' is not the name of a "
                "constant, or NAME[key]"
            )
        value, key = constant(file, match["name"]), match["key"]
        if isinstance(value, str):
            parts.append(_of_format(value, term))
        elif key in value.texts:
            parts.append(_of_format(value.texts[key], term))
        elif key is None:
            raise ValueError(
                f"data.prompt_template '{file}:{terms}': {match['name']} has a text for each of "
                f"{', '.join(value.texts)}; write {match['name']}[KEY], with one of them or with "
                "the column that has it"
            )
        else:
            tables[f"t{number}"] = {k: _without_fields(v, term) for k, v in value.texts.items()}
            parts.append(_chosen(f"t{number}", key, value))
    return _jinja("".join(parts), {"as_is": True, **tables})


def _chosen(table: str, column: str, choice: Choice) -> str:
    """The text of a table by the row's column; an unknown value has the other text, or none."""
    other = "" if choice.other is None else f", {choice.other!r}"
    key = f"row[{column!r}]"
    return f"{{{{ {table}.get({key}{other}) }}}}" if other else f"{{{{ {table}[{key}] }}}}"


def _of_format(text: str, name: str) -> str:
    """A text for ``str.format`` as jinja, with its field as the question; else unchanged.

    Raises:
        ValueError: It holds what ends a text in jinja.
    """
    if "{% endraw %}" in text:
        raise ValueError(f"data.prompt_template: {name} is a jinja template, not a text")
    if not _has_fields(text):
        return f"{{% raw %}}{text}{{% endraw %}}"
    pieces = []
    for literal, field, _, _ in Formatter().parse(text):
        pieces.append(f"{{% raw %}}{literal}{{% endraw %}}" if literal else "")
        pieces.append("" if field is None else "{{ question }}")
    return "".join(pieces)


def _has_fields(text: str) -> bool:
    try:
        return any(field is not None for _, field, _, _ in Formatter().parse(text))
    except ValueError:  # a single brace
        return False


def _without_fields(text: str, name: str) -> str:
    if _has_fields(text):
        raise ValueError(
            f"data.prompt_template: {name}: a text that a column chooses has no field; write the "
            "key in place of the column"
        )
    return text


def _jinja(text: str, names: dict[str, Any]) -> Template:
    return templates.environment(trimmed=False).from_string(text, globals=names)


def _folder() -> Traversable:
    return resources.files("mmr1.data") / "prompts"


def apply_template(sample: Sample, template: Template) -> Sample:
    """The sample with the template around its last question.

    Media before the question stay before the template's text.

    Raises:
        ValueError: The template fails, or does not contain the question exactly once.
    """
    question = max((i for i, m in enumerate(sample.messages) if m.role == "user"), default=None)
    if question is None:
        raise ValueError(f"{sample.id}: no user message to put into the template")
    system, before, after, trims = _render(sample, template)
    messages = list(sample.messages)
    asked = messages[question].parts
    around = _surround(_trimmed(asked) if trims else asked, before, after)
    messages[question] = Message("user", tuple(around))
    if system and all(m.role != "system" for m in messages):
        messages.insert(0, Message("system", (TextPart(system),)))
    return Sample(
        sample.id, tuple(messages), sample.answer, sample.task, sample.source, sample.meta
    )


def _render(sample: Sample, template: Template) -> tuple[str, str, str, bool]:
    """The system message, the text before and after the question, and whether it is trimmed."""
    variables = {
        "question": _QUESTION,
        "content": _QUESTION,
        "row": {**sample.meta, **sample.meta.get(ROW, {})},
        "options": sample.meta.get("options") or sample.meta.get("choices") or [],
        "task": sample.task,
        "media": [m.kind for m in sample.media],
    }
    try:
        module = template.make_module(variables)
    except TemplateError as error:
        raise ValueError(f"data.prompt_template: {error}") from error
    raw = str(module)
    text = raw.replace(_QUESTION, _MARK)
    pieces = (text if template.globals.get("as_is") else text.strip()).split(_MARK)
    if len(pieces) != 2:
        raise ValueError(
            f"data.prompt_template has {{{{ question }}}} {len(pieces) - 1} times; write it once"
        )
    system = str(getattr(module, "system", "")).strip()
    return system, pieces[0], pieces[1], _QUESTION not in raw


def _trimmed(content: tuple[ContentPart, ...]) -> tuple[ContentPart, ...]:
    """The parts without white space at the beginning of the first and the end of the last text."""
    parts = list(content)
    if parts and isinstance(parts[0], TextPart):
        parts[0] = replace(parts[0], text=parts[0].text.lstrip())
    if parts and isinstance(parts[-1], TextPart):
        parts[-1] = replace(parts[-1], text=parts[-1].text.rstrip())
    return tuple(parts)


def _surround(content: tuple[ContentPart, ...], before: str, after: str) -> Iterator[ContentPart]:
    leading = next(
        (i for i, item in enumerate(content) if not isinstance(item, MediaRef)), len(content)
    )
    yield from content[:leading]
    if before:
        yield TextPart(before)
    yield from content[leading:]
    if after:
        yield TextPart(after)
