"""Prompt templates: the text around a question, by name or as a jinja file.

The variables of a template are ``question`` (write it exactly once), ``options``, ``task`` and
``media`` (the kinds of the media, in order). ``{% set system %}…{% endset %}`` sets a system
message for conversations without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from jinja2 import Template, TemplateError

from mmr1 import templates
from mmr1.types import ContentPart, MediaRef, Message, Sample, TextPart

_QUESTION = "\ue000question\ue000"


def template_names() -> dict[str, str]:
    """The built-in templates by name, with the comment at the top of each."""
    texts = templates.named_texts(_folder())
    return {name: text.split("#}")[0].removeprefix("{#").strip() for name, text in texts.items()}


def load_template(name: str) -> Template:
    """A built-in template by name, or a ``.jinja`` file.

    Raises:
        ValueError: No such template, or its syntax is wrong.
    """
    return templates.load_template(name, _folder(), "data.prompt_template")


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
