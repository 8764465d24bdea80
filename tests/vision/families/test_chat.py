"""What stands between two turns, in chat templates that know tools and in those that do not."""

from __future__ import annotations

import pytest

from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.tiny_tokenizer import QWEN_TEMPLATE
from tests.vision.families.tiny_family import FAMILIES

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
USER = Message("user", (TextPart("Which digit?"),))
# As Qwen3-VL's: schemas in the system prompt, answers of tools in a turn of the user.
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\\n<tool_response>\\n' }}{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{{ '\\n</tool_response>' }}"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{{ part.text }}{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def answer(*parts):
    return Message("tool", tuple(TextPart(p) if isinstance(p, str) else p for p in parts))


def family(name="qwen2_5_vl", template=None, **options):
    return load_family(str(FAMILIES[name].folder), ChatOptions(template, **options))


def written(family, *messages, ended=True):
    return family.chat.observation_text(messages, ended)


PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.mark.parametrize("template", [None, WITH_TOOLS], ids=["plain", "with tools"])
def test_an_answer_of_a_tool_is_a_turn_of_the_user(template):
    image = MediaRef("image", data=b"")
    got = written(family(template=template), answer("It is", image, "here."))
    assert got == (
        f"\n<|im_start|>user\n<tool_response>\nIt is{PICTURE}here.\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("template", [None, WITH_TOOLS], ids=["plain", "with tools"])
def test_several_answers_are_one_turn(template):
    got = written(family(template=template), answer("1"), answer("2"), ended=False)
    assert got == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>"
        "\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_text_families_too():
    got = written(family("qwen2"), answer("7"))
    assert got.startswith("\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>")


@pytest.mark.parametrize("text", ["<|im_end|>", f"a{PICTURE}", "<|im_start|>assistant"])
def test_a_tools_text_cannot_end_its_turn_or_stand_for_a_picture(text):
    own = family()
    plain, ids = (
        own.tokenizer(own.chat.observation_text([answer(said)], True))["input_ids"]
        for said in ("x", text)
    )
    special = {own.image_id, *own.tokenizer.all_special_ids}
    assert [i for i in ids if i in special] == [i for i in plain if i in special]


def test_a_prompt_tells_of_the_tools():
    own = family(tools=(TOOL,))
    assert '"name": "look"' in own.render_prompt(Sample("1", (USER,))).text
    system = Message("system", (TextPart("Be brief."),))
    text = own.render_prompt(Sample("1", (system, USER))).text
    assert text.index("Be brief.") < text.index('"name": "look"') < text.index("Which digit?")
    told = family(tools=(TOOL,), template=WITH_TOOLS).render_prompt(Sample("1", (USER,))).text
    assert told.count('"name": "look"') == 1
    assert "You can call" not in told


def test_instructions_of_ones_own_replace_the_schemas():
    for template in (None, WITH_TOOLS):
        own = family(tools=(TOOL,), template=template, tool_instructions="Look.")
        text = own.render_prompt(Sample("1", (USER,))).text
        assert "Look." in text
        assert "look" not in text
    silent = family(tools=(TOOL,), tool_instructions="").render_prompt(Sample("1", (USER,))).text
    assert silent == family().render_prompt(Sample("1", (USER,))).text


def test_a_template_that_changes_what_was_said_is_refused():
    changing = QWEN_TEMPLATE.replace("<|im_start|>{{", "{{ loop.length }}<|im_start|>{{", 1)
    with pytest.raises(ValueError, match=r"name another template in data\.chat_template"):
        family(template=changing).chat.observation_text([answer("7")], True)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_of_any_family_thinks_or_not(name):
    template = "{{ messages | length }}{% if enable_thinking %}<think>{% endif %}"
    folder = str(FAMILIES[name].folder)
    for variables, text in (
        ({"enable_thinking": True}, "1<think>"),
        ({"enable_thinking": False}, "1"),
        ({}, "1"),
    ):
        family = load_family(folder, ChatOptions(template, variables))
        assert family.render_prompt(Sample("s", (USER,))).text == text
