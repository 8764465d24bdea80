"""Agent programs that talk to models without a family: what is read, and what is learnt."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoProcessor

pytest.importorskip("openai", reason="openai is not installed")

from mmr1.config import SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import group_input
from mmr1.types import MediaRef, Message, RolloutGroup, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.images import load_image
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.agents.engine import AgentEngine
from mmr1_contrib.agents.sections import AgentConfig
from mmr1_contrib.agents.turns import Turns
from tests.asking import asks, completed
from tests.contrib.agents.programs import uri
from tests.rollout.general_vllm import in_vllm
from tests.vision.families.general_family import GENERAL, IMAGE, General

PROGRAMS = Path(__file__).with_name("programs.py")
READ_TOGETHER = ["gemma3", "llava", "idefics3"]
# Of several pictures in one text LLaVA-OneVision's processor cuts none into crops.
ONE_BY_ONE = "llava_onevision"


def rolled_out(general: General, program: str, shown=()) -> list[RolloutGroup]:
    model, media = general.model(), MediaCache(general.family.prepare_media)
    # So that a turn ends after about six tokens.
    family = replace(general.family, stop_ids=tuple(range(100, 200)))
    config = AgentConfig(use=f"{PROGRAMS}:{program}", max_tokens_per_turn=30, workers=4)
    engine = HfEngine(model, family, media)
    agents = AgentEngine(engine, config, family, media, together=True, limit=2000)
    question = Message("user", (*shown, TextPart("Which digit?")))
    samples = [Sample(str(n), (question,)) for n in range(2)]
    requests = [asks(family.render_prompt(s), 2, 100 * n) for n, s in enumerate(samples)]
    try:
        return completed(agents, requests, SamplingConfig(max_tokens=400))
    finally:
        agents.close()


def plain_logprobs(general: General, ids: list[int], pictures: list[MediaRef]) -> torch.Tensor:
    """``[T - 1]`` by the model's own forward; its processor reads all pictures of a blank text."""
    processor, model = general.processor, general.model()
    content = [{"type": "image"}] * len(pictures) + [{"type": "text", "text": "a"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    given = {"images": [[load_image(m) for m in pictures]]} if pictures else {}
    batch = dict(processor(text=[text], return_tensors="pt", **given))
    batch["input_ids"] = torch.tensor([ids])
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    if "token_type_ids" in batch:  # Gemma 3's: 1 is a picture
        batch["token_type_ids"] = (batch["input_ids"] == model.config.image_token_id).long()
    with torch.no_grad():
        logits = model(**batch, use_cache=False).logits[0, :-1].float()
    logits[:, list(general.family.forbidden_ids)] = -torch.inf
    return logits.log_softmax(-1).gather(-1, batch["input_ids"][0, 1:, None])[:, 0]


def check_logprobs(
    general: General, group: RolloutGroup, packed: bool, limit: float = 1e-5
) -> None:
    """The engine's are those of each conversation by itself, and of the trainer's forward."""
    inputs = group_input(general.family, MediaCache(general.family.prepare_media), group)
    model, forbidden = general.model(packed), general.family.forbidden_ids
    scores = (
        completion_scores(model, [inputs], Distribution(forbidden=forbidden))
        .logprobs.detach()
        .numpy()
    )
    for completion, row in zip(group.completions, scores, strict=True):
        np.testing.assert_allclose(completion.logprobs, row[: len(completion.logprobs)], atol=limit)
        assert (completion.logprobs < 0).sum() == completion.sampled_tokens
        start = 0
        for spans in completion.sequences if general.name != ONE_BY_ONE else ():
            own = completion.token_ids[start:].tolist()[: sum(span.tokens for span in spans)]
            shown = [*group.prompt.media, *(m for span in spans for m in span.media)]
            alone = plain_logprobs(general, [*inputs.prompt_ids.tolist(), *own], shown)
            wanted = alone[len(inputs.prompt_ids) - 1 :].numpy()
            place = 0
            for span in spans:
                if span.role == "assistant":
                    got = completion.logprobs[start + place : start + place + span.tokens]
                    np.testing.assert_allclose(got, wanted[place : place + span.tokens], atol=limit)
                place += span.tokens
            start += place


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", READ_TOGETHER)
def test_the_turns_are_what_the_chat_template_and_the_processor_make(name, packed):
    general = GENERAL[name]
    groups = rolled_out(general, "turns", (IMAGE,))
    red = MediaRef("image", data=base64.b64decode(uri((200, 9, 9), 0).partition(",")[2]))
    look = [{"role": "assistant", "content": [{"type": "text", "text": "SAID"}]}]
    messages = [
        {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "Which digit?"}],
        }
    ]
    for number in range(3):
        told = [{"type": "text", "text": f"Look, {number}."}, {"type": "image"}]
        messages += [*look, *([{"role": "user", "content": told}] if number < 2 else [])]
    processor, eos = general.processor, general.family.tokenizer.eos_token
    text = processor.apply_chat_template(messages, tokenize=False)
    pictures = [load_image(m) for m in (IMAGE, red, red)]
    ids = processor(text=[text], images=[pictures], return_tensors="pt")["input_ids"][0].tolist()
    said = general.family.tokenizer(f"SAID{eos}", add_special_tokens=False)["input_ids"]
    segments = _split(ids, said)
    family, media = general.family, MediaCache(general.family.prepare_media)
    for group in groups:
        prompt = family.read_prompt(group.prompt, [media[m] for m in group.prompt.media])
        assert prompt.ids.tolist() == segments[0]
        for completion in group.completions:
            assert (completion.reward, completion.failure) == (7.0, None)
            assert [s.role for s in completion.spans] == ["assistant", "tool"] * 2 + ["assistant"]
            own = iter(completion.token_ids.tolist())
            runs = [[next(own) for _ in range(span.tokens)] for span in completion.spans]
            for turn, told, wanted in zip(runs[::2], runs[1::2], segments[1:3], strict=False):
                end = [] if 100 <= turn[-1] < 200 else said[-1:]
                assert told == end + wanted
        check_logprobs(general, group, packed)


def _split(ids: list[int], by: list[int]) -> list[list[int]]:
    found, begin = [], 0
    for n in range(len(ids)):
        if ids[n : n + len(by)] == by:
            found.append(ids[begin:n])
            begin = n + len(by)
    return [*found, ids[begin:]]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("shown", [(), (IMAGE,)], ids=["text", "picture"])
@pytest.mark.parametrize("name", [*READ_TOGETHER, ONE_BY_ONE])
def test_conversations_that_fork(name, shown, packed):
    """The third has another system prompt: all pictures are behind what the three begin with."""
    general = GENERAL[name]
    for group in rolled_out(general, "forks", shown):
        assert group.prompt.media == ()
        for completion in group.completions:
            assert (len(completion.sequences), completion.turns) == (3, 3)
            pictures = [sum(len(s.media) for s in spans) for spans in completion.sequences]
            assert pictures == [len(shown), len(shown), 1]
        check_logprobs(general, group, packed)


@pytest.mark.parametrize("program", ["rewrites", "writes_on"])
def test_what_a_program_says_the_policy_said(program):
    general = GENERAL["gemma3"]
    for group in rolled_out(general, program, (IMAGE,)):
        assert group.prompt.media == (IMAGE,)
        for completion in group.completions:
            assert len(completion.sequences) == (2 if program == "rewrites" else 1)
        check_logprobs(general, group, packed=True)


def test_a_picture_in_each_turn_of_a_model_whose_processor_counts_them():
    general = GENERAL[ONE_BY_ONE]
    for group in rolled_out(general, "turns", (IMAGE,)):
        check_logprobs(general, group, packed=True)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "leaves images out"),
        ("{% if loop.first %}<image>{% endif %}", "writes 1 of 2 pictures"),
    ],
)
def test_a_picture_that_the_chat_template_leaves_out_is_refused(written, message, tmp_path):
    general = GENERAL["llava"]
    processor = AutoProcessor.from_pretrained(general.folder)
    template = (
        "{% for p in messages[0].content %}{% if p.type == 'image' %}@{% endif %}{% endfor %}x"
    )
    processor.chat_template = template.replace("@", written)
    processor.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((general.folder / "config.json").read_text())
    family = load_family(str(tmp_path))
    pictures = [{"type": "image_url", "image_url": {"url": uri((1, 2, n))}} for n in range(2)]
    messages = [{"role": "user", "content": [*pictures, {"type": "text", "text": "What?"}]}]
    with pytest.raises(ValueError, match=message):
        Turns(Sample("1", ()), 0, family, ()).open({"messages": messages})


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("program", ["turns", "forks"])
@pytest.mark.parametrize("name", ["llava", "idefics3"])
def test_programs_in_vllm(name, program, tmp_path):
    """vLLM's own processor reads the pictures of each turn again."""
    general = GENERAL[name]
    environment = {"type": "agent", "use": f"{PROGRAMS}:{program}", "max_tokens_per_turn": 8}
    question = Message("user", (IMAGE, TextPart("Which digit?")))
    request = asks(general.family.render_prompt(Sample("1", (question,))), 2, 0)
    with in_vllm(general, general.model(), tmp_path, 512, environment=environment) as started:
        engine, packed, _ = started
        engine.load(packed.weights(), 1)
        (group,) = completed(engine, [request], SamplingConfig(max_tokens=400))
    assert len(group.completions[0].sequences) == (1 if program == "turns" else 3)
    check_logprobs(general, group, packed=True, limit=1e-4)
