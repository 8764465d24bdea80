"""Sound in models that hear: what the processor is given, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoProcessor,
    Qwen2_5OmniConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
)

from mmr1.trainer.forward.scores import completion_scores
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.audio import wav
from mmr1.vision.families.loading import load_family
from tests.vision.families.general_family import BEEP, GENERAL, NOISE, plain_scores
from tests.vision.families.general_models import HEARS
from tests.vision.families.tiny_family import FAMILIES

FRAMES = 200  # of the two seconds to which the small models' processor pads


@pytest.mark.parametrize("name", HEARS)
def test_lengths_are_told_before_the_prompt_is_read(name):
    general = GENERAL[name]
    for group in general.groups():
        medium = [general.family.prepare_media(m) for m in group.prompt.media]
        read = general.family.read_prompt(group.prompt, medium)
        assert general.family.prompt_length(group.prompt) == len(read.ids)
        for ref, prepared in zip(group.prompt.media, medium, strict=True):
            assert prepared.tokens == general.family.media_tokens(ref) > 0


@pytest.mark.parametrize("name", HEARS)
def test_the_same_sound_has_the_same_tokens_beside_others(name):
    """A beep of 56.25 frames: transformers counts the last one only beside longer sounds."""
    family = GENERAL[name].family
    alone = family.media_tokens(BEEP)
    both = GENERAL[name].group((NOISE, BEEP), 0).prompt
    read = family.read_prompt(both, [family.prepare_media(m) for m in both.media])
    token = family.processor.tokenizer.convert_tokens_to_ids(family.processor.audio_token)
    placeholders = 2  # which the rendered prompt has already
    expected = alone + family.media_tokens(NOISE) + placeholders
    assert int((read.ids == token).sum()) == expected


@pytest.mark.parametrize("tokens", [FRAMES, 128])
def test_a_prompt_of_as_many_tokens_as_frames_or_bands(tokens):
    """``[1, frames]`` and ``[1, bands, frames]`` are not arguments with an entry for each token."""
    general = GENERAL["qwen2_5_omni_thinker"]
    group = general.group((BEEP,), 1)
    missing = tokens - general.family.prompt_length(group.prompt)
    asked = Message("user", (BEEP, TextPart("Which digit is number 1?" + "!" * missing)))
    prompt = general.family.render_prompt(Sample("x", (asked,)))
    group = replace(group, prompt=prompt)
    (read,) = general.inputs([group])
    assert len(read.prompt_ids) == tokens
    expected = plain_scores(general, general.model(), [group], 0.9).logprobs
    for packed in (False, True):
        model = general.model(packed)
        found = completion_scores(model, [read], 0.9, general.family.forbidden_ids).logprobs
        assert (found - expected).abs().max() < 1e-5


def test_silence_and_other_sound_move_the_log_probs():
    general = GENERAL["qwen2_5_omni_thinker"]
    group = general.group((NOISE,), 0)
    blank = replace(NOISE, options={"blank": 1})
    prompts = [replace(group.prompt, shown=shown) for shown in ((NOISE,), (blank,))]
    groups = general.inputs([replace(group, prompt=prompt) for prompt in prompts])
    with torch.no_grad():
        model = general.model()
        heard, silent = (
            completion_scores(model, [g], 0.9, general.family.forbidden_ids).logprobs
            for g in groups
        )
    assert (heard - silent).abs().max() > 1e-3


def test_what_a_model_does_not_hear_is_refused():
    sample = Sample("x", (Message("user", (NOISE, TextPart("Hm?"))),))
    for family in (FAMILIES["qwen2_5_vl"].family, GENERAL["idefics3"].family):
        with pytest.raises(ValueError, match=r"the model does not hear: .* drop rows with sound"):
            family.render_prompt(sample)
    long = MediaRef("audio", data=wav(np.zeros(33_000, np.float32), 16_000))
    with pytest.raises(ValueError, match="lasts longer than 2 s, which is all that the model's"):
        GENERAL["qwen2_5_omni_thinker"].family.prepare_media(long)


def test_the_thinker_of_a_whole_model(tmp_path):
    """As the hub has it: docs/audio.md saves the thinker by itself."""
    own, whole = GENERAL["qwen2_5_omni_thinker"].folder, tmp_path / "whole"
    shutil.copytree(own, whole)
    weights = load_file(own / "model.safetensors")
    named = {f"thinker.{name}": weight for name, weight in weights.items()}
    save_file(named, whole / "model.safetensors", {"format": "pt"})
    thinker = AutoConfig.from_pretrained(own).to_dict()
    Qwen2_5OmniConfig(thinker_config=thinker).save_pretrained(whole)
    with pytest.raises(ValueError, match="a whole 'qwen2_5_omni', which also speaks"):
        load_family(str(whole))
    saved = tmp_path / "thinker"
    Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(whole).save_pretrained(saved)
    AutoProcessor.from_pretrained(whole).save_pretrained(saved)
    assert json.loads((saved / "config.json").read_text())["model_type"] == "qwen2_5_omni_thinker"
    again = load_file(saved / "model.safetensors")
    assert all(torch.equal(again[name], weight) for name, weight in weights.items())
    family, known = load_family(str(saved)), GENERAL["qwen2_5_omni_thinker"].family
    assert family.media_tokens(NOISE) == known.media_tokens(NOISE)
    assert family.forbidden_ids == known.forbidden_ids
