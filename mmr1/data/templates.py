"""Prompt templates: the text around a question, by name, as a file, or of a Python file.

The variables of a template are ``question`` (write it exactly once; EasyR1's and verl's name for it
is ``content``), ``options``, ``task``, ``media`` (the kinds of the media, in order) and ``row``
(the columns of the record). ``{% set system %}…{% endset %}`` sets a system message for
conversations without one.

``FILE.py:CONSTANT`` takes the text from another project's file, by parsing it. Its field of
``str.format`` is the question. ``FILE.py:A + B[column]`` joins several; a column of the record
chooses one of a dict. ``FILE.py:function[key]`` is the text that a function returns for a key.

``FILE.py:function`` is called with the columns of each record, and returns the prompt: a text,
messages, or a mapping with them in ``prompt``. Of the file only what the function needs is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Formatter
from typing import Any

from jinja2 import Template, TemplateError

from mmr1 import templates
from mmr1.data.constants import constant, is_function
from mmr1.data.forms.chat import read_chat
from mmr1.data.forms.columns import IMAGES, VIDEOS
from mmr1.data.placeholders import split_tags
from mmr1.pieces import function
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import ContentPart, MediaRef, Message, Sample, TextPart

_MARK = "\ue000question\ue000"
_QUESTION = f" {_MARK} "
"""With blanks, which a template's filter ``trim`` takes away."""
_TERM = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:\[(?P<key>[^\]]+)\])?")


@dataclass(frozen=True, slots=True)
class CalledTemplate:
    """A function of a file that makes the prompt of a record's columns.

    Attributes:
        name: Name in the configuration.
        function: Function from a row to the prompt.
    """

    name: str
    function: Callable[[dict[str, Any]], Any]


PromptTemplate = Template | CalledTemplate


def load_template(name: str) -> PromptTemplate:
    """A built-in template by name, a ``.jinja`` or ``.txt`` file, or parts of a ``.py`` file.

    Raises:
        ValueError: No such template, or its syntax is wrong.
    """
    file, colon, terms = name.rpartition(":")
    if colon and file.endswith(".py"):
        path = Path(file).expanduser()
        if re.fullmatch(r"[\w.]+", terms) and is_function(path, terms):
            return CalledTemplate(name, function(path, terms))
        return _of_constants(path, terms)
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
        key = match["key"]
        if key and is_function(file, match["name"]):
            parts.append(_of_format(str(function(file, match["name"])(key)), term))
            continue
        value = constant(file, match["name"])
        if isinstance(value, str):
            parts.append(_of_format(value, term))
        elif key in value:
            parts.append(_of_format(value[key], term))
        elif key is None:
            raise ValueError(
                f"data.prompt_template '{file}:{terms}': {match['name']} has a text for each of "
                f"{', '.join(value)}; write {match['name']}[KEY], with one of them or with "
                "the column that has it"
            )
        else:
            tables[f"t{number}"] = {k: _without_fields(v, term) for k, v in value.items()}
            parts.append(f"{{{{ t{number}[row[{key!r}]] }}}}")
    return _jinja("".join(parts), {"as_is": True, **tables})


def _of_format(text: str, name: str) -> str:
    """A text for ``str.format`` as jinja, with its field as the question; else unchanged.

    Raises:
        ValueError: If the text contains an end of a text in Jinja.
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


def apply_template(sample: Sample, template: PromptTemplate) -> Sample:
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


def _render(sample: Sample, template: PromptTemplate) -> tuple[str, str, str, bool]:
    """The system message, the text before and after the question, and whether it is trimmed."""
    row = {**sample.meta, **sample.meta.get(ROW, {})}
    if isinstance(template, CalledTemplate):
        system, raw = _called(sample, row, template)
        as_is = True
    else:
        system, raw = _filled(sample, row, template)
        as_is = bool(template.globals.get("as_is"))
    text = raw.replace(_QUESTION, _MARK)
    pieces = (text if as_is else text.strip()).split(_MARK)
    if len(pieces) != 2:
        written = (
            f"{template.name} uses the question"
            if isinstance(template, CalledTemplate)
            else "has {{ question }}"
        )
        raise ValueError(f"data.prompt_template {written} {len(pieces) - 1} times; write it once")
    return system, pieces[0], pieces[1], _QUESTION not in raw and not as_is


def _filled(sample: Sample, row: dict[str, Any], template: Template) -> tuple[str, str]:
    """The system message and the text of a template of jinja."""
    variables = {
        "question": _QUESTION,
        "content": _QUESTION,
        "row": row,
        "options": sample.meta.get("options") or sample.meta.get("choices") or [],
        "task": sample.task,
        "media": [m.kind for m in sample.media],
    }
    try:
        module = template.make_module(variables)
    except TemplateError as error:
        raise ValueError(f"data.prompt_template: {error}") from error
    return str(getattr(module, "system", "")).strip(), str(module)


_QUESTIONS = ("question", "problem", "prompt", "query", "content", "instruction")
"""Columns that hold the question for a function that is called."""


def _called(sample: Sample, row: dict[str, Any], template: CalledTemplate) -> tuple[str, str]:
    """The system message and the text of the last message of the user that a function makes."""
    row = {**row, **dict.fromkeys(_QUESTIONS, _MARK)}
    for kind, names in (("image", IMAGES), ("video", VIDEOS)):
        paths = [str(media.path or "") for media in sample.media if media.kind == kind]
        row |= {name: paths[0] if paths and name == kind else paths for name in names}
    try:
        made = template.function(row)
        while isinstance(made, Mapping):
            found = [made[key] for key in ("prompt", "messages", "content") if key in made]
            made = found[0]
        turns = read_chat(made).turns
    except Exception as error:  # of the user's function
        raise ValueError(
            f"data.prompt_template {template.name}: {type(error).__name__}: {error}; it gets the "
            "columns of a record and returns its prompt: a text, messages, or {'prompt': …}"
        ) from error
    asked = [text for role, text in turns if role == "user"]
    system = [text for role, text in turns if role == "system"]
    text = "".join(piece for piece in split_tags(asked[-1]) if isinstance(piece, str))
    return "\n".join(system), text


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
