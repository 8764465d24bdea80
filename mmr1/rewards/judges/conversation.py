"""What a judge is shown: a template's text and the question's images, as chat messages."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Template, TemplateError
from PIL import Image

from mmr1.templates import load_template
from mmr1.types import MediaRef, Sample
from mmr1.vision.images import image_size


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
    shown = [_picture(m) for m in sample.media if m.kind == "image"] if images else []
    user = {"role": "user", "content": [*shown, {"type": "text", "text": str(module).strip()}]}
    system = getattr(module, "system", None)
    if system is None:
        return [user]
    return [{"role": "system", "content": str(system).strip()}, user]


def _picture(medium: MediaRef) -> dict[str, Any]:
    """The image's own bytes as a data URL."""
    image_size(medium)  # refuses what is not one of the formats that a run reads
    try:
        data = medium.read()
        with Image.open(io.BytesIO(data)) as image:
            kind = Image.MIME[str(image.format)]
    except OSError as error:
        raise ValueError(f"an image cannot be shown to the judge: {error}") from error
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
