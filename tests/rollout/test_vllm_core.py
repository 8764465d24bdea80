"""vLLM's core in its own process: the same completions, true labels, and no orphans."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from mmr1.config import Config, SamplingConfig
from mmr1.data.record import read_records
from mmr1.rollout import vllm_core
from mmr1.rollout.build_vllm import build_vllm_engine
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.protocol import Request
from mmr1.rollout.vllm import VllmEngine
from mmr1.types import Completion
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.asking import Numbered, completed
from tests.rollout.vllm_in_flight import (
    Nothing,
    changed,
    gaps_of_first_new_tokens,
    groups_of,
    model_with_large_weights,
    worst_gaps,
)

pytestmark = pytest.mark.vllm
LONG, SHORT = SamplingConfig(max_tokens=400), SamplingConfig(max_tokens=40)
N = 4


def engine_of(model: Path, folder: Path, apart: bool, **options: Any) -> EngineProcess:
    config = Config(
        model={"path": str(model), "dtype": "float32"},
        rollout={
            "max_prompt_length": 64,
            "max_response_length": 448,
            **options.pop("rollout", {}),
        },
        trainer={"threads": 1},
    )
    build = options.pop("build", build_vllm_engine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(vllm_core.SETTING, str(int(apart)))
        media = MediaCache(load_family(str(model)).prepare_media).__getitem__
        log = folder / "engine.log"
        return EngineProcess(build, (config,), media, log, 1, 600, together=True, **options)


@pytest.fixture(scope="module")
def parts(tiny_model, mixed, tmp_path_factory) -> Iterator[tuple]:
    family = load_family(str(tiny_model))
    model = model_with_large_weights(tiny_model)
    media = MediaCache(family.prepare_media)
    prompts = [family.render_prompt(sample) for sample in read_records(mixed)[:4]]
    engine = engine_of(tiny_model, tmp_path_factory.mktemp("apart"), apart=True, restarts=2)
    yield family, model, media, prompts, engine
    engine.close()


def core_of(engine: EngineProcess) -> psutil.Process:
    """The process of its core: that of its children which has a model."""
    children = psutil.Process(engine._process.pid).children()
    return max(children, key=lambda child: child.memory_info().rss)


def requests_of(parts: tuple) -> dict[int, Request]:
    """Text alone, one image, two images, a video."""
    _, _, _, prompts, _ = parts
    return groups_of(prompts, first=None)


def sampled(engine: EngineProcess, requests: dict[int, Request]) -> list[Completion]:
    groups = completed(engine, list(requests.values()), SHORT)
    return [completion for group in groups for completion in group.completions]


def test_its_completions_are_those_of_a_core_in_the_engines_process(parts, tiny_model, tmp_path):
    """Before and after new weights; sums are of other batches, and may differ in the last bits."""
    _, model, _, _, apart = parts
    requests = requests_of(parts)
    within = engine_of(tiny_model, tmp_path, apart=False)
    try:
        assert not psutil.Process(within._process.pid).children()
        for version, weights in enumerate((model, changed(model, 0)), start=1):
            for engine in (within, apart):
                engine.load(weights.state_dict(), version)
            pairs = zip(sampled(within, requests), sampled(apart, requests), strict=True)
            for mine, theirs in pairs:
                assert mine.token_ids.tolist() == theirs.token_ids.tolist()
                assert np.abs(mine.logprobs - theirs.logprobs).max() <= 1e-4
                assert mine.policy_version == theirs.policy_version == version
    finally:
        within.close()


def run_across(
    parts: tuple, engine: EngineProcess, models: dict[int, torch.nn.Module]
) -> dict[int, Completion]:
    """Completions that are under way as weights change, each at once after the first tokens."""
    requests = {n: replace(r, sampling=LONG) for n, r in requests_of(parts).items()}
    ended: dict[int, Completion] = {}
    given, numbered = requests, Numbered(engine)
    for version, weights in models.items():
        engine.load(weights.state_dict(), version)
        for _ in range(5):
            ended |= numbered.advance(given)
            given = {}
    while ended.keys() < requests.keys():
        ended |= numbered.advance({}, 0.05)
    return ended


def test_each_token_has_the_log_prob_of_the_weights_that_it_names(parts):
    _, model, _, _, engine = parts
    models = {1: model, 2: changed(model, 0), 3: changed(model, 1)}
    ended = run_across(parts, engine, models)
    assert any([version for version, _ in c.versions] == [1, 2, 3] for c in ended.values())
    gaps = worst_gaps(parts, models, ended)
    assert max(gaps.values()) <= 1e-4, gaps


def test_what_is_abandoned_is_counted_and_aborted(parts):
    """Also what the core has sampled and the engine's process not read."""
    _, model, _, _, engine = parts
    engine.load(model.state_dict(), 1)
    requests, ended, numbered = requests_of(parts), {}, Numbered(engine)
    short = {n: replace(r, sampling=SHORT) for n, r in requests.items()}
    for given in (short, {}, {}, {}):
        ended |= numbered.advance(given)
    lost = engine.cancel()
    again = sampled(engine, requests)
    assert 0 < lost <= sum(len(c.token_ids) for n, c in enumerate(again) if n not in ended)


@pytest.mark.slow
def test_a_core_that_dies_is_replaced_with_its_engine(parts):
    _, model, _, _, engine = parts
    engine.load(model.state_dict(), 1)
    requests = requests_of(parts)
    before = sampled(engine, requests)
    restarted = engine.restarted
    os.kill(core_of(engine).pid, signal.SIGKILL)
    again = sampled(engine, requests)
    assert engine.restarted == restarted + 1
    assert [c.token_ids.tolist() for c in again] == [c.token_ids.tolist() for c in before]


def test_a_killed_engine_leaves_no_core_behind(parts):
    engine = parts[-1]
    core = core_of(engine)
    os.kill(engine._process.pid, signal.SIGKILL)
    psutil.wait_procs([core], timeout=30)
    assert not core.is_running()


def core_as_on_a_gpu(*args: Any, **options: Any) -> None:
    torch.cuda.Event = torch.cuda.Stream = Nothing
    torch.cuda.current_stream = lambda *_: Nothing()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    vllm_core.run_core(*args, **options)


def engine_that_schedules_ahead(media: Any, config: Config) -> VllmEngine:
    """Its core begins a step before it has read the last one's tokens."""
    from vllm.platforms.cpu import CpuPlatform

    own = CpuPlatform.check_and_update_config

    def update(vllm_config: Any) -> None:
        of_a_gpu = vllm_config.scheduler_config.async_scheduling
        own(vllm_config)
        vllm_config.scheduler_config.async_scheduling = of_a_gpu

    CpuPlatform.check_and_update_config = staticmethod(update)
    run_core, vllm_core.run_core = vllm_core.run_core, core_as_on_a_gpu
    engine = build_vllm_engine(media, config)
    vllm_core.run_core = run_core
    assert "asynchronous scheduling on" in engine.settings
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache", ["keep", "recompute"])
def test_labels_are_true_where_it_schedules_ahead(kv_cache, parts, tiny_model, tmp_path):
    """It is held only when no step is under way. Kept keys and values are of older weights."""
    _, model, _, _, _ = parts
    models = {1: model, 2: changed(model, 0)}
    streaming = {
        "max_off_policy_steps": 1,
        "queue": {"at_new_weights": "continue", "kv_cache": kv_cache},
    }
    engine = engine_of(
        tiny_model, tmp_path, apart=True, rollout=streaming, build=engine_that_schedules_ahead
    )
    core = core_of(engine)
    try:
        ended = run_across(parts, engine, models)
    finally:
        engine.close()
    psutil.wait_procs([core], timeout=30)
    assert not core.is_running(), "the closed engine left it behind"
    first = gaps_of_first_new_tokens(parts, model, ended)
    assert first
    assert min(first) > 1e-4, first
    gaps = worst_gaps(parts, models, ended)
    assert gaps[1] <= 1e-4, gaps
    assert kv_cache == "keep" or gaps[2] <= 1e-4, gaps
