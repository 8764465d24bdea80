"""Each family in both engines: what they sample against transformers' own forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmr1.config import Config, SamplingConfig
from mmr1.data.record import read_records
from mmr1.rollout.build import build_engine
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sampling.parity import check_parity
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.vision.families.tiny_family import FAMILIES, TEXT, TinyFamily, plain_scores

SAMPLING = SamplingConfig(max_tokens=12, temperature=0.9)


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES)
def tiny(request) -> TinyFamily:
    return request.param


@pytest.fixture(scope="module")
def prompts(tiny, mixed):
    """Text alone, one image, two images, a video; of a text model text alone."""
    samples = read_records(mixed)[:8]
    return [tiny.family.render_prompt(s) for s in samples if tiny.sees or not s.media]


def largest_gap(tiny, model, media, engine, prompts) -> float:
    """Of the engine's log-probs from transformers' plain forward of each completion."""
    groups = completed(engine, [asks(p, 3, i) for i, p in enumerate(prompts)], SAMPLING)
    inputs = [group_input(tiny.family, media, g) for g in groups]
    forbidden = tiny.family.forbidden_ids
    with torch.no_grad():
        expected = plain_scores(model, inputs, SAMPLING.temperature, forbidden).logprobs
    rows = [c.logprobs for g in groups for c in g.completions]
    assert len(rows) == 3 * len(prompts)
    return max(
        float(np.abs(row - want[: len(row)].numpy()).max())
        for row, want in zip(rows, expected, strict=True)
    )


def test_transformers_engine(tiny, prompts):
    model, media = tiny.model(), MediaCache(tiny.family.prepare_media)
    engine = HfEngine(model, tiny.family, media)
    assert largest_gap(tiny, model, media, engine, prompts) <= 1e-5


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm(tiny, prompts, tmp_path):
    """The same prompts, grids and log-probs; and again after new weights by their names."""
    model, media = tiny.model(), MediaCache(tiny.family.prepare_media)
    config = Config(
        model={"path": str(tiny.folder), "dtype": "float32"},
        rollout={"max_prompt_length": 192, "max_response_length": 64},
        trainer={"threads": 1},
    )
    engine = build_engine(config, tiny.family, media, tmp_path / "engine.log", None)
    packed = PackedModel(
        model,
        ModelInputs(tiny.family, media),
        Distribution(SAMPLING.temperature, forbidden=tiny.family.forbidden_ids),
        budget=1000,
    )
    try:
        engine.load(packed.weights(), 1)
        checked = (packed, tiny.family, media, prompts, SAMPLING, 1e-4)
        parity = check_parity(engine, *checked)
        print(f"{tiny.name}: {parity}")
        assert parity.prompts == len(prompts)
        assert largest_gap(tiny, model, media, engine, prompts) <= 1e-4
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            for parameter in model.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        assert largest_gap(tiny, model, media, engine, prompts) > 1e-3
        engine.load(packed.weights(), 2)
        assert largest_gap(tiny, model, media, engine, prompts) <= 1e-4
    finally:
        engine.close()


@pytest.mark.parametrize("name", TEXT)
def test_stop_tokens_come_from_the_models_files(name):
    family = FAMILIES[name].family
    stops = {family.tokenizer.convert_ids_to_tokens(i) for i in family.stop_ids}
    ends = {"<|eot_id|>", "<|end_of_text|>"} if name == "llama" else {"<|im_end|>", "<|endoftext|>"}
    assert stops == ends
