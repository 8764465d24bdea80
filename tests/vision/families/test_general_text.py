"""Text models that mmr1 does not name: prompts, log-probs, samples and whole runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
)

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import build_engine
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.forward.any_model.forward import verdict_of
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sampling.parity import check_parity
from mmr1.trainer.train import run_training
from mmr1.types import MediaRef, Message, RolloutGroup, Sample
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.jsonl import read_jsonl
from tests.vision.families.text_models import (
    MODELS,
    REFUSED,
    TOGETHER,
    folder_of,
    parts_of,
    plain_logprobs,
    prompts_of,
)


def sampled(family, model, max_tokens=24) -> list[RolloutGroup]:
    engine = HfEngine(model, family, MediaCache(family.prepare_media))
    requests = [asks(prompt, 3, 10 * i) for i, prompt in enumerate(prompts_of(family))]
    return completed(engine, requests, SamplingConfig(max_tokens=max_tokens))


ALIKE = [name for name in MODELS if name != REFUSED]


@pytest.mark.parametrize("sharing", ["packed", "padded"])
@pytest.mark.parametrize("name", ALIKE)
def test_log_probs_are_those_of_each_completion_alone(name, sharing):
    family, model = parts_of(name, sharing)
    own = AutoModelForCausalLM.from_pretrained(folder_of(name), dtype=torch.float32).eval()
    assert (verdict_of(model) is not None) == (sharing == "packed")
    calls = []
    hook = model.get_decoder().register_forward_pre_hook(lambda *_: calls.append(None))
    groups = sampled(family, model)
    hook.remove()
    assert (len(calls) < 2 * 24) == (sharing == "packed" and name in TOGETHER)
    media = MediaCache(family.prepare_media)
    inputs = [group_input(family, media, group) for group in groups]
    scores = completion_scores(
        model, inputs, Distribution(forbidden=family.forbidden_ids)
    ).logprobs.detach()
    rows = iter(scores.numpy())
    for group in groups:
        conversation = [{"role": "system", "content": "Be brief."},
                        {"role": "user", "content": group.prompt.sample.question}]  # fmt: skip
        ids = family.tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        assert list(group.prompt.token_ids) == ids
        for completion in group.completions:
            tokens = completion.token_ids.tolist()
            wanted = plain_logprobs(family, own, [*ids, *tokens])[len(ids) - 1 :]
            np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-5)
            np.testing.assert_allclose(next(rows)[: len(tokens)], wanted, atol=1e-5)


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"its logits are not those of its output embedding"):
        parts_of(REFUSED)
    family, _ = parts_of("olmo2")
    seen = Sample("seen", (Message("user", (MediaRef("image", data=b"x"),)),))
    with pytest.raises(ValueError, match="leaves images out"):
        family.render_prompt(seen)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "architectures": ["T5"]}))
    with pytest.raises(ValueError, match=r"is a 't5' model.*ForCausalLM"):
        load_family(str(tmp_path))


def test_a_run_learns_and_writes_a_model(tmp_path):
    rows = [{"messages": [{"role": "user", "content": f"What is {n} + 1?"}], "answer": str(n + 1)}
            for n in range(4)]  # fmt: skip
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"id": str(n), **row}) + "\n" for n, row in enumerate(rows)))
    run_training(
        Config(
            model={"path": str(folder_of("gemma3_text")), "dtype": "float32"},
            data={"train": str(data), "train_batch_size": 2},
            rollout={"engine": "hf", "n": 3, "max_response_length": 16},
            rewards={"length": {"type": "format"}},
            algorithm={"kl": {"coef": 0.01}},
            optimizer={"lr": 1e-3, "scheduler": {"warmup_steps": 0}},
            trainer={"max_steps": 1, "output_dir": str(tmp_path / "run"), "threads": 1},
        )
    )
    logged = read_jsonl(tmp_path / "run/metrics.jsonl")[0]
    assert logged["rollout/logprob_diff_mean"] < 1e-4
    saved = next((tmp_path / "run").rglob("model.safetensors")).parent
    family = load_family(str(saved))
    before = load_family(str(folder_of("gemma3_text")))
    assert family.tokenizer.chat_template == before.tokenizer.chat_template


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_vllm(name, tmp_path):
    family, model = parts_of(name)
    media, sampling = MediaCache(family.prepare_media), SamplingConfig(max_tokens=24)
    config = Config(
        model={"path": str(folder_of(name)), "dtype": "float32"},
        rollout={"max_prompt_length": 200, "max_response_length": 64},
        trainer={"threads": 1},
    )
    engine = build_engine(config, family, media, tmp_path / "engine.log", model)
    packed = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), budget=1000
    )
    try:
        for version in (1, 2):
            with torch.no_grad():
                generator = torch.Generator().manual_seed(0)
                for parameter in model.parameters():
                    parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
            engine.load(packed.weights(), version)
            print(
                name,
                check_parity(engine, packed, family, media, prompts_of(family), sampling, 1e-4),
            )
    finally:
        engine.close()
