"""New weights while vLLM samples: what is under way continues with them, exactly."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.rollout.build_vllm import build_vllm_engine
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.protocol import Request
from mmr1.rollout.vllm import VllmEngine
from mmr1.types import Completion
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.asking import Numbered
from tests.rollout.vllm_in_flight import (
    N,
    Nothing,
    changed,
    gaps_of_first_new_tokens,
    groups_of,
    model_with_large_weights,
    worst_gaps,
)

pytestmark = pytest.mark.vllm


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["tower learns", "tower frozen"],
)
def parts(request, tiny_model, mixed, tmp_path_factory) -> Iterator[tuple]:
    family = load_family(str(tiny_model))
    model = model_with_large_weights(tiny_model)
    if request.param:  # as in the trainer: what is shaken has a gradient
        model.model.visual.requires_grad_(False)
    media = MediaCache(family.prepare_media)
    prompts = [family.render_prompt(sample) for sample in read_records(mixed)[:4]]
    engine = engine_of(tiny_model, tmp_path_factory.mktemp("engine"), frozen=request.param)
    yield family, model, media, prompts, engine
    engine.close()


def engine_of(
    model: Path,
    folder: Path,
    frozen: bool = False,
    build: Callable[..., VllmEngine] = build_vllm_engine,
    **rollout: Any,
) -> EngineProcess:
    config = Config(
        model={"path": str(model), "dtype": "float32", "freeze_vision_tower": frozen},
        rollout={"max_prompt_length": 64, "max_response_length": 64, **rollout},
        trainer={"threads": 1},
    )
    media = MediaCache(load_family(str(model)).prepare_media).__getitem__
    log = folder / "engine.log"
    return EngineProcess(build, (config,), media, log, 1, 600, restarts=1, together=True)


def advanced(engine, requests, times: int) -> dict[int, Completion]:
    """What ends within so many steps of the engine."""
    ended: dict[int, Completion] = {}
    for _ in range(times):
        ended |= engine.advance(requests)
        requests = {}
    return ended


def to_the_end(engine, numbers: set[int], ended: dict[int, Completion]) -> dict[int, Completion]:
    while ended.keys() < numbers:
        ended |= engine.advance({}, 0.05)
    return ended


def test_each_token_has_the_log_prob_of_the_weights_that_it_names(parts):
    _, model, _, prompts, engine = parts
    models = {1: model, 2: changed(model, 0), 3: changed(model, 1)}
    requests = groups_of(prompts)
    engine.load(models[1].state_dict(), 1)
    numbered = Numbered(engine)
    ended = advanced(numbered, requests, 20)
    assert {0, N, 2 * N, 3 * N} <= ended.keys()  # a member of each group; others continue
    assert all(len(ended.keys() & range(first, first + N)) < N for first in range(0, 4 * N, N))
    engine.load(models[2].state_dict(), 2)
    ended |= advanced(numbered, {}, 15)
    engine.load(models[3].state_dict(), 3)
    ended = to_the_end(numbered, set(requests), ended)
    long = [c for c in ended.values() if len(c.token_ids) > 40]
    assert long
    assert all([version for version, _ in c.versions] == [1, 2, 3] for c in long)
    assert {c.policy_version for c in ended.values()} == {1}
    gaps = worst_gaps(parts, models, ended)
    assert max(gaps.values()) <= 1e-4, gaps
    others = {1: models[2], 2: models[3], 3: models[1]}
    assert min(worst_gaps(parts, others, ended).values()) > 1e-2  # the versions differ


def engine_as_on_a_gpu(media: Any, config: Config, guarded: bool = True) -> VllmEngine:
    """With asynchronous scheduling, which vLLM's CPU backend switches off.

    As on a GPU a step is under way when the call returns, and its tokens come with the next one.

    Args:
        guarded: Where mmr1 asks vLLM for none, there is none.
    """
    from vllm.platforms.cpu import CpuPlatform

    own = CpuPlatform.check_and_update_config

    def update(vllm_config: Any) -> None:
        scheduler = vllm_config.scheduler_config
        of_a_gpu = scheduler.async_scheduling
        own(vllm_config)
        scheduler.async_scheduling = of_a_gpu or not guarded

    CpuPlatform.check_and_update_config = staticmethod(update)
    torch.cuda.Event = torch.cuda.Stream = Nothing
    torch.cuda.current_stream = lambda *_: Nothing()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    engine = build_vllm_engine(media, config)
    queue = engine._llm.llm_engine.engine_core.engine_core.batch_queue
    assert (queue is not None) == ("asynchronous scheduling on" in engine.settings)
    return engine


def engine_that_schedules_ahead(media: Any, config: Config) -> VllmEngine:
    engine = engine_as_on_a_gpu(media, config)
    assert "asynchronous scheduling on" in engine.settings
    return engine


def engine_with_the_guard(media: Any, config: Config) -> VllmEngine:
    engine = engine_as_on_a_gpu(media, config)
    assert "asynchronous scheduling off" in engine.settings
    return engine


def engine_without_the_guard(media: Any, config: Config) -> VllmEngine:
    engine = engine_as_on_a_gpu(media, config, guarded=False)
    assert "asynchronous scheduling on" in engine.settings
    return engine


def through_new_weights(
    engine: EngineProcess, models: dict[int, Any], requests: dict[int, Request]
) -> dict[int, Completion]:
    """All completions; the second model's weights come in their midst."""
    engine.load(models[1].state_dict(), 1)
    numbered = Numbered(engine)
    ended = advanced(numbered, requests, 20)
    engine.load(models[2].state_dict(), 2)
    return to_the_end(numbered, set(requests), ended)


@pytest.mark.slow
def test_labels_are_right_with_a_step_under_way_as_weights_change(parts, tiny_model, tmp_path):
    """vLLM labels tokens when they come out, one step late: those of the step under way are dropped
    and sampled again, by the new weights.
    """
    _, model, _, prompts, _ = parts
    models = {1: model, 2: changed(model, 0)}
    engine = engine_of(tiny_model, tmp_path, build=engine_that_schedules_ahead)
    try:
        ended = through_new_weights(engine, models, groups_of(prompts))
    finally:
        engine.close()
    assert any([version for version, _ in c.versions] == [1, 2] for c in ended.values())
    gaps = worst_gaps(parts, models, ended)
    assert max(gaps.values()) <= 1e-4, gaps


@pytest.mark.slow
@pytest.mark.parametrize("build", [engine_without_the_guard, engine_with_the_guard])
def test_where_keys_and_values_are_kept_no_step_is_under_way(build, parts, tiny_model, tmp_path):
    """It would be finished, not dropped: its tokens, of the old weights, would have the new label.

    The first token that a completion labels with the new version tells them apart: it reads keys
    and values of the old weights in either case, so the old ones give its log-prob or do not.
    """
    _, model, _, prompts, _ = parts
    models = {1: model, 2: changed(model, 0)}
    keeps = {"max_off_policy_steps": 1, "queue": {"at_new_weights": "continue", "kv_cache": "keep"}}
    engine = engine_of(tiny_model, tmp_path, build=build, **keeps)
    try:
        ended = through_new_weights(engine, models, groups_of(prompts))
    finally:
        engine.close()
    assert worst_gaps(parts, models, ended)[1] <= 1e-4
    gaps = gaps_of_first_new_tokens(parts, model, ended)
    assert len(gaps) > N
    if build is engine_without_the_guard:
        assert max(gaps) <= 1e-4, gaps
    else:
        assert min(gaps) > 1e-4, gaps


def test_kept_keys_and_values_are_those_of_older_weights(parts, tiny_model, tmp_path):
    """A completion that continues reads them, and is of neither policy; later ones do not."""
    _, model, _, prompts, _ = parts
    models = {1: model, 2: changed(model, 0)}
    keeps = {"max_off_policy_steps": 1, "queue": {"at_new_weights": "continue", "kv_cache": "keep"}}
    engine = engine_of(tiny_model, tmp_path, **keeps)
    try:
        engine.load(models[1].state_dict(), 1)
        numbered = Numbered(engine)
        requests = groups_of(prompts)
        ended = advanced(numbered, requests, 20)
        engine.load(models[2].state_dict(), 2)
        again = {number + len(requests): request for number, request in requests.items()}
        ended |= advanced(numbered, again, 1)
        ended = to_the_end(numbered, {*requests, *again}, ended)
    finally:
        engine.close()
    later = {n - len(requests): ended.pop(n) for n in again}
    assert {c.policy_version for c in later.values()} == {2}
    assert any([version for version, _ in c.versions] == [1, 2] for c in ended.values())
    gaps = worst_gaps(parts, models, ended)
    assert gaps[1] <= 1e-4
    assert gaps[2] > 1e-2
    assert worst_gaps(parts, models, later)[2] <= 1e-4


def test_what_is_abandoned_is_counted_and_begins_again(parts):
    _, model, _, prompts, engine = parts
    engine.load(model.state_dict(), 1)
    numbered = Numbered(engine)
    requests = groups_of(prompts[1:2])
    advanced(numbered, requests, 12)
    # A step samples a token of each; the prompt takes one or two steps.
    assert 3 * 10 <= engine.cancel() <= 3 * 12
    again = changed(model, 2)
    engine.load(again.state_dict(), 2)
    ended = to_the_end(numbered, set(requests), advanced(numbered, requests, 1))
    assert {c.policy_version for c in ended.values()} == {2}
    assert all(not c.versions for c in ended.values())
    shown = (*parts[:3], prompts[1:2], engine)
    assert worst_gaps(shown, {2: again}, ended)[2] <= 1e-4


def test_an_engine_that_dies_at_new_weights_samples_on_with_them(parts):
    _, model, _, prompts, engine = parts
    engine.load(model.state_dict(), 1)
    numbered = Numbered(engine)
    requests = groups_of(prompts)
    ended = advanced(numbered, requests, 20)
    os.kill(engine._process.pid, signal.SIGKILL)
    engine._process.join()
    again = changed(model, 3)
    engine.load(again.state_dict(), 2)
    before = set(ended)
    ended = to_the_end(numbered, set(requests), ended)
    assert engine.restarted == 1
    assert {ended[n].policy_version for n in before} == {1}
    late = {n: c for n, c in ended.items() if n not in before}
    assert {c.policy_version for c in late.values()} == {2}
    assert not any(c.versions for c in late.values())
    assert worst_gaps(parts, {2: again}, late)[2] <= 1e-4
