"""A judge's input: a template's text and the question's images, as chat messages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Template, TemplateError

from mmr1.templates import load_template
from mmr1.types import Sample
from mmr1.vision.images import data_url


def load_judge_template(name: str) -> Template:
    """A built-in template by name, or a ``.jinja`` file.

    Its variables are ``question``, ``answer`` (the gold answer), ``completion`` (for comparisons
    ``completion_a`` and ``completion_b``), ``task`` and ``meta``. ``{% set system %}…{% endset %}``
    sets a system message.

    Raises:
        ValueError: No such template, or its syntax is wrong.
    """
    folder = resources.files("mmr1.rewards.judges") / "prompts"
    return load_template(name, folder, "judge template")


def messages(
    template: Template, sample: Sample, completions: Mapping[str, str], *, images: bool
) -> list[dict[str, Any]]:
    """Chat messages in OpenAI's form: the system message, then the images and the text.

    Args:
        template: See :func:`load_judge_template`.
        sample: The question.
        completions: The template's variables for them.
        images: Show the question's images.

    Raises:
        ValueError: The template needs a variable that there is not, or an image cannot be read.
    """
    variables = {
        "question": sample.question,
        "answer": sample.answer,
        "task": sample.task,
        "meta": sample.meta,
        **completions,
    }
    try:
        module = template.make_module(variables)
    except TemplateError as error:
        raise ValueError(f"the judge's template: {error}") from error
    pictures = [m for m in sample.media if m.kind == "image"] if images else []
    shown = [{"type": "image_url", "image_url": {"url": data_url(m)}} for m in pictures]
    user = {"role": "user", "content": [*shown, {"type": "text", "text": str(module).strip()}]}
    system = getattr(module, "system", None)
    if system is None:
        return [user]
    return [{"role": "system", "content": str(system).strip()}, user]
