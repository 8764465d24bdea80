"""A chat template that refuses a conversation is a ValueError, which names the key."""

from __future__ import annotations

import pytest

from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.loading import load_family

SAMPLE = Sample("1", (Message("user", (TextPart("What is 2+2?"),)),))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system role') }}", r"TemplateError: no system role"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ undefined.x.y }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0] + 1 }}", "TypeError"),
        ("{{ messages[99].content }}", "UndefinedError"),
        ("{{ 'x' | nope }}", "TemplateAssertionError"),
        ("", "has no chat template"),
        ("{# nothing #}", "makes an empty text"),
    ],
)
def test_a_template_that_cannot_render_is_named(template, message, tiny_model):
    with pytest.raises(ValueError, match=rf"{message}.*data\.chat_template"):
        load_family(str(tiny_model), ChatOptions(template)).render_prompt(SAMPLE)


def test_media_that_a_template_leaves_out_are_refused(tiny_model):
    """Else a model would be trained on questions about pictures that it never sees."""
    words = "{% for p in messages[0].content %}{{ p.text }}{% if p.type in kept %}<x>{% endif %}"
    parts = (MediaRef("image", data=b""), MediaRef("video", data=b""), TextPart("What is it?"))

    def rendered(kept: list[str]) -> str:
        family = load_family(
            str(tiny_model), ChatOptions(f"{words}{{% endfor %}}", variables={"kept": kept})
        )
        return family.render_prompt(Sample("1", (Message("user", parts),))).text

    assert rendered(["image", "video"]) == "<x><x>What is it?"
    for kept, left in (("image", "video"), ("video", "image")):
        with pytest.raises(ValueError, match=f"template leaves {left}s out.*drop rows with {left}"):
            rendered([kept])
