"""Prompt templates: the text around a question, by name or as a jinja file.

The variables of a template are ``question`` (write it exactly once), ``options``, ``task`` and
``media`` (the kinds of the media, in order). ``{% set system %}…{% endset %}`` sets a system
message for conversations without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mmr1.registry import suggest
from mmr1.types import ContentPart, MediaRef, Message, Sample, TextPart

_QUESTION = "\ue000question\ue000"


def template_names() -> dict[str, str]:
    """The built-in templates by name, with the comment at the top of each."""
    folder = resources.files("mmr1.data") / "prompts"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".jinja")), key=lambda f: f.name)
    return {
        f.name.removesuffix(".jinja"): f.read_text().split("#}")[0].removeprefix("{#").strip()
        for f in files
    }


def load_template(name: str) -> Template:
    """A built-in template by name, or a ``.jinja`` file.

    Raises:
        ValueError: No such template, or its syntax is wrong.
    """
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    if name.endswith((".jinja", ".j2")):
        path = Path(name)
        if not path.is_file():
            raise ValueError(f"data.prompt_template '{name}': no such file")
        text = path.read_text(encoding="utf-8")
    else:
        names = template_names()
        if name not in names:
            raise ValueError(
                f"unknown data.prompt_template '{name}'{suggest(name, names)}; "
                f"known: {', '.join(names)}; "
                "or name a .jinja file"
            )
        text = (resources.files("mmr1.data") / f"prompts/{name}.jinja").read_text()
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise ValueError(f"data.prompt_template '{name}': {error}") from error


def apply_template(sample: Sample, template: Template) -> Sample:
    """The sample with the template around its last question.

    Media before the question stay before the template's text.

    Raises:
        ValueError: The template fails, or does not contain the question exactly once.
    """
    question = max((i for i, m in enumerate(sample.messages) if m.role == "user"), default=None)
    if question is None:
        raise ValueError(f"{sample.id}: no user message to put into the template")
    system, before, after = _render(sample, template)
    messages = list(sample.messages)
    messages[question] = Message("user", tuple(_surround(messages[question].parts, before, after)))
    if system and all(m.role != "system" for m in messages):
        messages.insert(0, Message("system", (TextPart(system),)))
    return Sample(
        sample.id, tuple(messages), sample.answer, sample.task, sample.source, sample.meta
    )


def _render(sample: Sample, template: Template) -> tuple[str, str, str]:
    """The system message, and the text before and after the question."""
    variables = {
        "question": _QUESTION,
        "options": sample.meta.get("options") or sample.meta.get("choices") or [],
        "task": sample.task,
        "media": [m.kind for m in sample.media],
    }
    try:
        module = template.make_module(variables)
    except TemplateError as error:
        raise ValueError(f"data.prompt_template: {error}") from error
    pieces = str(module).strip().split(_QUESTION)
    if len(pieces) != 2:
        raise ValueError(
            f"data.prompt_template has {{{{ question }}}} {len(pieces) - 1} times; write it once"
        )
    return str(getattr(module, "system", "")).strip(), pieces[0], pieces[1]


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
