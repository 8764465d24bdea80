"""Text families: their prompts, their refusals, and what a configuration changes about them."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mmr1.trainer.forward.any_model.sharing import settle
from mmr1.trainer.forward.scores import completion_scores
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.families import tiny as small
from mmr1.vision.families.chat import ChatOptions, read_template
from mmr1.vision.families.loading import load_family, model_parts
from tests.vision.families.tiny_family import FAMILIES, TEXT, plain_scores

QUESTION = Sample("q", (Message("user", (TextPart("How many?"),)),))


@pytest.mark.parametrize("name", TEXT)
def test_prompts_are_those_of_the_models_own_template(name):
    tiny = FAMILIES[name]
    prompt = tiny.family.render_prompt(QUESTION, "Be brief.")
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(tiny.folder)
    ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert list(prompt.token_ids) == ids
    assert tiny.family.prompt_length(prompt) == len(ids)
    assert tiny.family.read_prompt(prompt, []).ids.tolist() == ids


def test_a_text_model_can_be_made_without_naming_its_family(tmp_path):
    small.new_model(tmp_path, family="text")
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen3"


def test_parts_are_the_whole_model():
    for name in TEXT:
        model = FAMILIES[name].model()
        parts = model_parts(model)
        modules = [*parts.layers, parts.embed_tokens, parts.lm_head, parts.language_model.norm]
        assert {id(p) for m in modules for p in m.parameters()} == {
            id(p) for p in model.parameters()
        }
        assert parts.tower is None


def test_a_record_with_an_image_is_refused():
    sample = Sample("seen", (Message("user", (MediaRef("image", data=b"x"), TextPart("?"))),))
    with pytest.raises(ValueError, match="leaves images out, so the model would not see them"):
        FAMILIES["qwen3"].family.render_prompt(sample)


def test_thinking_is_switched_off_by_the_template():
    folder = str(FAMILIES["qwen3"].folder)
    texts = {
        thinking: load_family(
            folder, ChatOptions(None, {} if thinking is None else {"enable_thinking": thinking})
        )
        .render_prompt(QUESTION)
        .text
        for thinking in (None, True, False)
    }
    assert texts[None] == texts[True]
    assert texts[False] == texts[True] + "<think>\n\n</think>\n\n"
    with pytest.raises(ValueError, match="the chat template does not read it"):
        load_family(str(FAMILIES["qwen2"].folder), ChatOptions(None, {"enable_thinking": False}))


def test_a_template_in_place_of_the_models_own_goes_with_the_checkpoint(tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    family = load_family(str(FAMILIES["llama"].folder), ChatOptions(read_template(str(file))))
    assert family.render_prompt(QUESTION).text == "[user] How many?"
    family.processor.save_pretrained(tmp_path / "saved")
    shutil.copy(FAMILIES["llama"].folder / "config.json", tmp_path / "saved")
    again = load_family(str(tmp_path / "saved"))
    assert again.render_prompt(QUESTION).text == "[user] How many?"
    with pytest.raises(ValueError, match=r"data\.chat_template 'no\.jinja': no such file"):
        read_template("no.jinja")


def test_a_model_without_a_template_asks_for_one(tmp_path):
    folder = shutil.copytree(FAMILIES["qwen2"].folder, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match=r"has no chat template; .*data\.chat_template"):
        load_family(str(folder))
    assert load_family(str(folder), ChatOptions("{{ messages }}")).processor.chat_template


def test_a_missing_tokenizer_is_told(tmp_path):
    folder = shutil.copytree(FAMILIES["qwen2"].folder, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"its tokenizer .*copy tokenizer\.json|cannot be loaded"):
        load_family(str(folder))


def test_a_sliding_window_is_seen():
    """Left out, its layers would see more than the model does, and nothing would say so."""
    tiny = FAMILIES["qwen2"]
    config = json.loads((tiny.folder / "config.json").read_text())
    config |= {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    config["layer_types"] = ["full_attention", "sliding_attention"]
    config = type(tiny.model().config)(**config)
    model = AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    model.load_state_dict(tiny.model().state_dict())
    groups = [tiny.group([], 9, [3, 7], 0)]
    plain = plain_scores(model, groups, 1.0).logprobs.detach()
    settle(model, tiny.family, "packed", tiny.name)
    torch.testing.assert_close(
        completion_scores(model, groups).logprobs.detach(), plain, atol=1e-5, rtol=0
    )
    everything = completion_scores(tiny.model(), groups).logprobs.detach()
    assert (everything - plain).abs().max() > 1e-3
