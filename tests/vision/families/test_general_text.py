"""Text models that mmr1 does not name: prompts, log-probs, samples, programs and whole runs."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    MistralConfig,
    Olmo2Config,
)

from mmr1.config import AgentConfig, Config, ModelConfig, SamplingConfig
from mmr1.rollout.agent_engine import AgentEngine
from mmr1.rollout.build import BatchedTurns, build_engine
from mmr1.rollout.engine import Request
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.forward.any_model.forward import verdict_of
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.loading import load_model
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sampling.parity import check_parity
from mmr1.trainer.train import run_training
from mmr1.types import MediaRef, Message, RolloutGroup, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.tiny_tokenizer import VOCABULARY, qwen_tokenizer
from mmr1.vision.prepare import MediaCache
from tests.jsonl import read_jsonl

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 32}
MODELS = {
    "mistral": MistralConfig(**GROUPED, sliding_window=12),
    "gemma3_text": Gemma3TextConfig(**GROUPED, sliding_window=1024),
    "gemma2": Gemma2Config(**GROUPED, sliding_window=1024, final_logit_softcapping=0.5),
    "olmo2": Olmo2Config(**SIZES, num_key_value_heads=2),
    "gpt_neox": GPTNeoXConfig(**SIZES),
}
TOGETHER = ("gemma3_text", "olmo2", "gpt_neox")
"""Whose prompts the transformers engine decodes together: Mistral's window is short."""
REFUSED = "gemma2"
"""Its logits are capped, so they are not those of its output embedding."""
QUESTIONS = ("How many days has a week?", "Why? Think of it, please, before you say a word.")


@cache
def folder_of(name: str) -> Path:
    config = MODELS[name]
    folder = Path(tempfile.mkdtemp(prefix="mmr1-text-")) / name
    tokenizer = qwen_tokenizer(None)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.bos_token_id = None
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for part, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(4 if any(n in part for n in ("q_proj", "k_proj")) else 2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def parts_of(name: str, sharing: str = "auto"):
    path = str(folder_of(name))
    config = ModelConfig(path=path, dtype="float32", sharing=sharing)
    return load_family(path), load_model(config).eval()


def prompts_of(family):
    samples = [Sample(q, (Message("user", (TextPart(q),)),)) for q in QUESTIONS]
    return [family.render_prompt(sample, "Be brief.") for sample in samples]


def sampled(family, model, max_tokens=24) -> list[RolloutGroup]:
    engine = HfEngine(model, family, MediaCache(family.prepare_media))
    requests = [Request(prompt, 3, 10 * i) for i, prompt in enumerate(prompts_of(family))]
    return engine.generate(requests, SamplingConfig(max_tokens=max_tokens))


@torch.no_grad()
def plain_logprobs(family, model, ids: list[int]) -> np.ndarray:
    """``[T - 1]`` by transformers' own forward."""
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    logits[:, list(family.forbidden_ids)] = -torch.inf
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids)[1:, None])[:, 0].numpy()


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
    scores = completion_scores(model, inputs, 1.0, family.forbidden_ids).logprobs.detach()
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
    with pytest.raises(ValueError, match=r"'seen' shows <image.*is a text model"):
        family.render_prompt(seen)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "architectures": ["T5"]}))
    with pytest.raises(ValueError, match=r"is a 't5' model.*ForCausalLM"):
        load_family(str(tmp_path))


PROGRAMS = Path(__file__).parents[2] / "rollout" / "agent_programs.py"


@pytest.mark.parametrize("name", ["gemma3_text", "mistral"])
@pytest.mark.parametrize(("program", "sequences"), [("rewrites", 2), ("writes_on", 1)])
def test_programs(name, program, sequences):
    pytest.importorskip("openai", reason="openai is not installed")
    family, model = parts_of(name)
    often = replace(family, stop_ids=tuple(range(100, 200)))  # about one token in six ends
    media = MediaCache(family.prepare_media)
    engine = HfEngine(model, often, media)
    config = AgentConfig(use=f"{PROGRAMS}:{program}", max_tokens_per_turn=30, workers=2)
    turns = BatchedTurns(engine, often)
    agents = AgentEngine(engine, turns, config, often, media, at_once=True, limit=2000)
    requests = [Request(prompt, 2, 7 * i) for i, prompt in enumerate(prompts_of(family))]
    try:
        groups = agents.generate(requests, SamplingConfig(max_tokens=200))
    finally:
        agents.close()
    own = AutoModelForCausalLM.from_pretrained(folder_of(name), dtype=torch.float32).eval()
    for group in groups:
        inputs = group_input(family, media, group)
        scores = completion_scores(model, [inputs], 1.0, family.forbidden_ids).logprobs.detach()
        for completion, row in zip(group.completions, scores.numpy(), strict=True):
            assert len(completion.sequences) == sequences
            np.testing.assert_allclose(
                completion.logprobs, row[: len(completion.logprobs)], atol=1e-5
            )
            start = 0
            for spans in completion.sequences:
                length = sum(span.tokens for span in spans)
                tokens = completion.token_ids[start : start + length].tolist()
                ids = list(group.prompt.token_ids)
                wanted = plain_logprobs(family, own, [*ids, *tokens])[len(ids) - 1 :]
                mask = np.repeat([s.role == "assistant" for s in spans], [s.tokens for s in spans])
                logged = completion.logprobs[start : start + length]
                np.testing.assert_allclose(logged[mask], wanted[mask], atol=1e-5)
                start += length


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
            rewards={"functions": {"length": {"use": "format"}}},
            algorithm={"kl": {"coef": 0.01}},
            optimizer={"lr": 1e-3, "scheduler": {"warmup_steps": 0}},
            trainer={"max_steps": 1, "output_dir": str(tmp_path / "run"), "threads": 1},
        )
    )
    logged = read_jsonl(tmp_path / "run/metrics.jsonl")[0]
    assert logged["rollout/logprob_gap"] < 1e-4
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
    packed = PackedModel(model, ModelInputs(family, media), 1.0, budget=1000)
    try:
        for version in (1, 2):
            with torch.no_grad():
                generator = torch.Generator().manual_seed(0)
                for parameter in model.parameters():
                    parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
            engine.load_weights(packed.weights(), version)
            print(
                name,
                check_parity(engine, packed, family, media, prompts_of(family), sampling, 1e-4),
            )
    finally:
        engine.close()
