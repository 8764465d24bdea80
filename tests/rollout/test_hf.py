"""The transformers engine against full-sequence forwards and transformers' own generate."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from mmr1.config import Config, NewLoraConfig, SamplingConfig
from mmr1.rollout import decoding
from mmr1.rollout.decoding import Decoder
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import Request
from mmr1.rollout.vllm_environment import IEEE_PRODUCTS
from mmr1.trainer.distributed.engine_actor import build_engine_with_own_weights
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sampling.parity import ParityError, check_parity
from mmr1.types import Message, Prompt, Sample, TextPart
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.loading import load_family, unwrapped
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.padded_forward import padded_scores


@pytest.fixture(scope="module")
def parts(tiny_model):
    family = load_family(str(tiny_model))
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    media = MediaCache(family.prepare_media)
    return family, model, media, HfEngine(model, family, media)


@pytest.fixture(scope="module")
def prompts(parts, digit_samples):
    """One image, two images, text only: three lengths in one batch."""
    family = parts[0]
    first, second = digit_samples[:2]
    both = Message("user", (*first.messages[0].parts, *second.messages[0].parts))
    text = Message("user", (TextPart("How many days has a week? Think."),))
    samples = [first, Sample("two", (both,)), Sample("text", (text,))]
    return [family.render_prompt(s) for s in samples]


def requests(prompts: list[Prompt], n: int = 3) -> list[Request]:
    return [asks(p, n, seed) for seed, p in enumerate(prompts)]


def test_logprobs_equal_a_full_forward(parts, prompts):
    family, model, media, engine = parts
    sampling = SamplingConfig(max_tokens=12, temperature=0.8)
    groups = completed(engine, requests(prompts), sampling)
    inputs = [group_input(family, media, g) for g in groups]
    expected = padded_scores(
        model, inputs, Distribution(0.8, forbidden=family.forbidden_ids)
    ).logprobs
    rows = [c.logprobs for g in groups for c in g.completions]
    assert len(rows) == 9
    for row, wanted in zip(rows, expected, strict=True):
        np.testing.assert_allclose(row, wanted[: len(row)].detach(), atol=1e-5)


def test_a_stop_text_ends_a_completion_and_stays_in_it(parts, prompts):
    family, _, _, engine = parts
    free = SamplingConfig(max_tokens=12)
    whole = completed(engine, requests(prompts), free)
    stop = family.tokenizer.decode(whole[0].completions[0].token_ids[2:4])
    actual = completed(engine, requests(prompts), free.changed({"stop": (stop,)}))
    first = actual[0].completions[0]
    assert first.token_ids.tolist() == whole[0].completions[0].token_ids[:4].tolist()
    assert not first.truncated
    for before, after in zip(whole, actual, strict=True):
        for a, b in zip(before.completions, after.completions, strict=True):
            shorter = len(b.token_ids) < len(a.token_ids)
            assert shorter == (stop in family.tokenizer.decode(a.token_ids[:-1]))
            assert a.token_ids[: len(b.token_ids)].tolist() == b.token_ids.tolist()


def test_greedy_equals_transformers_generate(parts, prompts):
    family, model, _, engine = parts
    (group,) = completed(
        engine, requests(prompts[:1], n=1), SamplingConfig(max_tokens=10, temperature=0)
    )
    (image,) = prompts[0].media
    batch = family.processor(
        text=[prompts[0].text],
        images=[Image.open(image.path).convert("RGB")],
        return_tensors="pt",
    )
    expected = model.generate(
        **batch, max_new_tokens=10, do_sample=False, suppress_tokens=list(family.forbidden_ids)
    )[0, batch["input_ids"].shape[1] :]
    assert group.completions[0].token_ids.tolist() == expected.tolist()


def test_a_completion_depends_on_its_seed_and_not_on_its_neighbours(parts, prompts):
    engine = parts[3]
    sampling = SamplingConfig(max_tokens=12)
    together = completed(engine, requests(prompts), sampling)
    for index, prompt in enumerate(prompts):
        (alone,) = completed(engine, [asks(prompt, 3, index)], sampling)
        for a, b in zip(alone.completions, together[index].completions, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
    texts = {c.text for g in together for c in g.completions}
    assert len(texts) == 9, "completions of one group must differ"


@pytest.mark.parametrize("adapters", [False, True])
def test_groups_that_shrink_and_end_keep_to_a_full_forward(adapters, parts, prompts, monkeypatch):
    """Rows and whole groups leave the batch, and the room for completions grows, as they decode."""
    monkeypatch.setattr(decoding, "GROWTH", 3)
    family, model, media, _ = parts
    often = replace(family, stop_ids=tuple(range(100, 200)))  # about one token in six ends
    if adapters:
        model = add_adapters(copy.deepcopy(model), NewLoraConfig(rank=2), freeze_vision_tower=False)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:  # 0 at first, as if there were no adapter
                    weight.normal_(std=0.02)
    engine = HfEngine(model, often, media)
    asked = [asks(p, n, 10 * n) for p, n in zip(prompts, (1, 7, 4), strict=True)]
    groups = completed(engine, asked, SamplingConfig(max_tokens=20))
    lengths = [{len(c.token_ids) for c in g.completions} for g in groups]
    assert len(set.union(*lengths)) > 5
    assert len({max(own) for own in lengths}) > 1, "a group is to end before the others"
    inputs = [group_input(family, media, g) for g in groups]
    expected = padded_scores(
        unwrapped(model), inputs, Distribution(forbidden=family.forbidden_ids)
    ).logprobs
    rows = [c.logprobs for g in groups for c in g.completions]
    for row, wanted in zip(rows, expected, strict=True):
        np.testing.assert_allclose(row, wanted[: len(row)].detach(), atol=1e-5)


def test_an_image_of_several_prompts_is_encoded_once(parts, digit_samples):
    family, model, media, _ = parts
    picture = digit_samples[0].media[0]
    samples = [
        Sample(text, (Message("user", (picture, TextPart(text))),)) for text in ("Why?", "Where?")
    ]
    asked = requests([family.render_prompt(s) for s in samples])
    own = copy.deepcopy(model)
    rows = []
    own.model.visual.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    completed(HfEngine(own, family, media), asked, SamplingConfig(max_tokens=2))
    assert rows == [len(media[picture].patches)]
    # What a frozen tower made, the engine shares with the update.
    own.model.visual.requires_grad_(False)
    features = FeatureCache()
    engine = HfEngine(own, family, media, features=features)
    groups = completed(engine, asked, SamplingConfig(max_tokens=2))
    completion_scores(own, [group_input(family, media, g) for g in groups], features=features)
    completed(engine, asked, SamplingConfig(max_tokens=2))
    assert rows == [len(media[picture].patches)] * 2


@pytest.mark.parametrize("frozen", [True, False])
def test_a_workers_engine_keeps_the_features_of_a_frozen_tower(tiny_model, prompts, frozen):
    """On Ray it has a model of its own, which nobody trains; its next weights may change a tower
    that is not frozen."""
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32", "freeze_vision_tower": frozen},
        rollout={"engine": "hf"},
    )
    family = family_of(config)
    engine = build_engine_with_own_weights(config, family, media_cache(family, config))
    calls = []
    engine._model.model.visual.register_forward_pre_hook(lambda _, args: calls.append(args))

    def sample() -> list[list[list[int]]]:
        groups = completed(engine, requests(prompts), SamplingConfig(max_tokens=2))
        return [[c.token_ids.tolist() for c in group.completions] for group in groups]

    first, calls_of_first = sample(), len(calls)
    assert sample() == first
    assert calls_of_first > 0
    assert len(calls) == (calls_of_first if frozen else 2 * calls_of_first)


def test_weights_lie_as_they_did_after_an_interrupted_rollout(parts, prompts, monkeypatch):
    family, model, media, _ = parts
    own = copy.deepcopy(model)

    def interrupted(self: Decoder, tokens: torch.Tensor) -> torch.Tensor:
        assert not own.lm_head.weight.is_contiguous()
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        completed(HfEngine(own, family, media), requests(prompts), SamplingConfig(max_tokens=4))
    for mine, before in zip(own.parameters(), model.parameters(), strict=True):
        assert mine.is_contiguous()
        assert torch.equal(mine, before)


def test_stop_and_length_are_told_apart(parts, prompts):
    family, model, media, _ = parts
    often = replace(family, stop_ids=tuple(range(100, 200)))  # about one token in six ends
    engine = HfEngine(model, often, media)
    groups = completed(engine, requests(prompts, n=8), SamplingConfig(max_tokens=5))
    completions = [c for g in groups for c in g.completions]
    assert {c.truncated for c in completions} == {True, False}
    for completion in completions:
        tokens = completion.token_ids.tolist()
        assert completion.truncated == (tokens[-1] not in often.stop_ids)
        assert not set(tokens[:-1]) & set(often.stop_ids)
        assert len(tokens) == 5 or not completion.truncated


def test_placeholders_cannot_be_sampled(parts, prompts):
    family, model, media, _ = parts
    eager = AutoModelForImageTextToText.from_config(model.config)
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():  # the model wants nothing but placeholders
        eager.lm_head.weight[list(family.forbidden_ids)] *= 1000
    groups = completed(
        HfEngine(eager, family, media), requests(prompts), SamplingConfig(max_tokens=8)
    )
    drawn = {t for g in groups for c in g.completions for t in c.token_ids.tolist()}
    assert drawn.isdisjoint(family.forbidden_ids)
    assert family.image_id in family.forbidden_ids
    assert family.pad_id in family.forbidden_ids


def test_new_weights_are_used_and_stamped(parts, prompts):
    family, model, media, _ = parts
    other = AutoModelForImageTextToText.from_config(model.config)
    engine = HfEngine(other, family, media)
    engine.load(model.state_dict(), version=7)
    sampling = SamplingConfig(max_tokens=6)
    actual = completed(engine, requests(prompts), sampling)
    expected = completed(parts[3], requests(prompts), sampling)
    for a, b in zip(actual, expected, strict=True):
        for x, y in zip(a.completions, b.completions, strict=True):
            assert x.token_ids.tolist() == y.token_ids.tolist()
            assert x.policy_version == 7


def test_one_processor_call_per_image(parts, prompts):
    family, model, _, _ = parts
    media = MediaCache(family.prepare_media)
    engine = HfEngine(model, family, media)
    for _ in range(2):
        completed(engine, requests(prompts), SamplingConfig(max_tokens=2))
    assert media.processor_calls == 2


@pytest.mark.parametrize(
    ("rounded", "remedy"),
    [(False, "TRITON_F32_DEFAULT=ieee and NVIDIA_TF32_OVERRIDE=0"), (True, "attention_backend")],
    ids=["float32", "half precision"],
)
def test_the_parity_check_names_the_engines_kernels(rounded, remedy, parts, prompts):
    """Beside weights, positions and pixels, with what changes them."""
    family, model, media, engine = parts
    stale = copy.deepcopy(model)
    with torch.no_grad():
        stale.lm_head.weight.mul_(1.5)
    packed_model = PackedModel(
        stale, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), budget=1000
    )
    checked = (engine, packed_model, family, media, prompts, SamplingConfig(max_tokens=4))
    with pytest.raises(ParityError, match=f"the engine's kernels may be the cause: .*{remedy}"):
        check_parity(*checked, 1e-4, rounded)
    settings = {f"{name}={value}" for name, value in IEEE_PRODUCTS.items()}
    assert rounded or set(remedy.split(" and ")) <= settings  # which engines in float32 get


@pytest.mark.parametrize("cut", [{"min_p": 0.3}, {"top_p": 0.5}, {"top_k": 2}])
def test_parity_check_samples_from_the_runs_own_distribution(cut, parts, prompts):
    """A trainer that evaluates over the whole vocabulary what was cut is caught."""
    family, model, media, engine = parts
    inputs, sampling = ModelInputs(family, media), SamplingConfig(max_tokens=4, **cut)
    own = Distribution.of(sampling, family.forbidden_ids)
    packed_model = PackedModel(model, inputs, own, budget=1000)
    parity = check_parity(engine, packed_model, family, media, prompts, sampling, 1e-4)
    assert parity.max_gap <= 1e-4
    whole = replace(packed_model, distribution=own.of_model())
    with pytest.raises(ParityError, match="differ by up to"):
        check_parity(engine, whole, family, media, prompts, sampling, 1e-4)
