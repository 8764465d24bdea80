"""A real vLLM engine in its own process: parity, weight updates, failures."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForImageTextToText

pytest.importorskip("vllm", reason="vLLM is not installed")

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.engine import Request
from mmr1.rollout.process import EngineError, EngineProcess
from mmr1.trainer.build import build_engine
from mmr1.trainer.forward.padded import padded_scores
from mmr1.trainer.forward.scorer import Scorer
from mmr1.trainer.forward.sequences import group_input
from mmr1.trainer.parity import ParityError, check_parity
from mmr1.types import Message, Sample, TextPart
from mmr1.vision.families.qwen2_5_vl import load_family, prepare_media, render_prompt
from mmr1.vision.prepare import MediaCache

pytestmark = pytest.mark.vllm
SAMPLING = SamplingConfig(max_tokens=12, temperature=0.9)


@pytest.fixture(scope="module")
def parts(tiny_model, tmp_path_factory):
    family = load_family(str(tiny_model))
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    media = MediaCache(partial(prepare_media, family))
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        rollout={"max_model_len": 128},
        trainer={"threads": 1},
    )
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    engine = build_engine(config, family, media, log, None)
    yield family, model, media, engine
    engine.close()


@pytest.fixture(scope="module")
def prompts(parts, digit_samples):
    family = parts[0]
    first, second = digit_samples[:2]
    both = Message("user", (*first.messages[0].parts, *second.messages[0].parts))
    text = Message("user", (TextPart("How many days has a week?"),))
    samples = [first, Sample("two", (both,)), Sample("text", (text,))]
    return [render_prompt(family, s) for s in samples]


def gaps(parts, prompts) -> float:
    """Largest distance of the engine's log-probs from a padded transformers forward."""
    family, model, media, engine = parts
    groups = engine.generate([Request(p, 4, i) for i, p in enumerate(prompts)], SAMPLING)
    inputs = [group_input(family, media, g) for g in groups]
    expected = padded_scores(model, inputs, SAMPLING.temperature, family.forbidden_ids).logprobs
    rows = [c.logprobs for g in groups for c in g.completions]
    assert len(rows) == 4 * len(prompts)
    return max(
        float(np.abs(row - want[: len(row)].detach().numpy()).max())
        for row, want in zip(rows, expected, strict=True)
    )


def parity(parts, prompts):
    family, model, media, engine = parts
    scorer = Scorer(model, family, media, SAMPLING.temperature, budget=1000)
    return check_parity(engine, scorer, family, media, prompts, SAMPLING, 1e-4)


def test_same_prompts_same_grids_same_logprobs(parts, prompts):
    assert parity(parts, prompts).prompts == 3
    assert gaps(parts, prompts) <= 1e-4


def test_in_step_after_fifty_updates(parts, prompts):
    _, model, _, engine = parts
    generator = torch.Generator().manual_seed(0)
    before = gaps(parts, prompts)
    for version in range(1, 51):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1e-3 * torch.randn(parameter.shape, generator=generator)
        engine.load_weights(model.state_dict(), version)
    assert before <= 1e-4
    assert gaps(parts, prompts) <= 1e-4
    (group,) = engine.generate([Request(prompts[0], 2, 0)], SAMPLING)
    assert {c.policy_version for c in group.completions} == {50}


def test_stale_weights_fail_the_parity_check(parts, prompts):
    _, model, _, engine = parts
    with torch.no_grad():
        model.lm_head.weight += 0.01 * torch.randn(
            model.lm_head.weight.shape, generator=torch.Generator().manual_seed(1)
        )
    with pytest.raises(ParityError, match=r"differ by up to .* nats"):
        parity(parts, prompts)
    engine.load_weights(model.state_dict(), 51)
    assert parity(parts, prompts).max_gap <= 1e-4


def test_same_seed_same_tokens_and_no_placeholders(parts, prompts):
    family, _, _, engine = parts
    runs = [engine.generate([Request(p, 4, 7) for p in prompts], SAMPLING) for _ in range(2)]
    tokens = [[c.token_ids.tolist() for g in run for c in g.completions] for run in runs]
    assert tokens[0] == tokens[1]
    assert {t for row in tokens[0] for t in row}.isdisjoint(family.forbidden_ids)
    assert len({tuple(row) for row in tokens[0][:4]}) == 4


def test_min_p_and_stop_texts(parts, prompts):
    family, _, _, engine = parts
    free = SAMPLING.model_copy(update={"min_p": 0.5})
    request = [Request(prompts[0], 2, 3)]
    (whole,) = engine.generate(request, free)
    text = whole.completions[0].text
    stop = text[len(text) // 3 : len(text) // 2]
    (found,) = engine.generate(request, free.model_copy(update={"stop": (stop,)}))
    first, unstopped = (g.completions[0].token_ids.tolist() for g in (found, whole))
    assert len(first) < len(unstopped)
    assert first == unstopped[: len(first)]
    assert stop in family.tokenizer.decode(first)
    assert stop not in family.tokenizer.decode(first[:-1])
    assert not found.completions[0].truncated


@pytest.mark.slow
def test_killed_while_it_generates_the_step_ends_with_the_same_completions(parts, prompts):
    _, model, _, engine = parts
    engine.load_weights(model.state_dict(), 60)
    requests = [Request(p, 64, i) for i, p in enumerate(prompts)]
    sampling = SAMPLING.model_copy(update={"max_tokens": 64})
    undisturbed = engine.generate(requests, sampling)
    before = engine._process.pid
    threading.Timer(0.2, os.kill, (before, signal.SIGKILL)).start()
    begin = time.monotonic()
    found = engine.generate(requests, sampling)
    print(f"detected, replaced and asked again within {time.monotonic() - begin:.1f} s")
    assert engine.restarted == 1
    assert not psutil.pid_exists(before)
    for one, other in zip(found, undisturbed, strict=True):
        for a, b in zip(one.completions, other.completions, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert a.policy_version == 60
    assert gaps(parts, prompts) <= 1e-4


def _refuse() -> None:
    raise ValueError("no such engine")


def _crash() -> None:
    print("about to crash", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_refusal_keeps_its_message(tmp_path: Path):
    with pytest.raises(ValueError, match="no such engine"):
        EngineProcess(_refuse, (), tmp_path / "engine.log")


def test_a_death_is_reported_with_the_end_of_the_log(tmp_path: Path):
    with pytest.raises(EngineError, match=r"died \(exit code -9\)[\s\S]*about to crash"):
        EngineProcess(_crash, (), tmp_path / "engine.log")
