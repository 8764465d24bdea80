"""Engines on Ray that die or hang: replaced with the weights they had, and asked again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.rollout.build import with_conversations
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import Request
from mmr1.trainer.distributed.cluster import Cluster, engines_on_ray, on_ray
from mmr1.trainer.distributed.errors import WorkerLostError
from mmr1.trainer.distributed.ray_engines import Router
from mmr1.trainer.forward.sequences import group_input
from mmr1.trainer.models.loading import load_model
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.types import Prompt, RolloutGroup, Sample
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.padded_forward import padded_scores
from tests.trainer.conversations import brief_model
from tests.trainer.distributed.engine_processes import processes

pytest.importorskip("ray", reason="Ray is not installed")


def config(tiny_model: Path, tmp_path: Path, **rollout: object) -> Config:
    return Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"num_workers": 0},
        rollout={
            "engine": "hf",
            "max_prompt_length": 88,
            "max_response_length": 8,
            "timeout_s": 120,
            "max_restarts": 2,
            **rollout,
        },
        trainer={"threads": 1, "output_dir": str(tmp_path)},
        resources={"engines": 2},
    )


@pytest.fixture(scope="module")
def requests(tiny_model, mixed) -> list[Request]:
    family = load_family(str(tiny_model))
    return [asks(family.render_prompt(s), 2, i) for i, s in enumerate(read_records(mixed)[:4])]


def other_weights(settings: Config, seed: int) -> dict[str, torch.Tensor]:
    """Not those that the model's folder has."""
    torch.manual_seed(seed)
    return {
        name: weight + 0.02 * torch.randn_like(weight)
        for name, weight in load_model(settings.model).state_dict().items()
    }


def set_weights(cluster: Cluster, weights: dict[str, torch.Tensor]) -> None:
    """Of the policy on the ranks."""
    model = cluster.ranks.part(lambda models: models.policy._packed_model)
    model.load_weights(PackedModel.load_weights, weights)


@pytest.fixture
def cluster(tiny_model, tmp_path) -> Iterator[Cluster]:
    """Ranks and engines with weights of their own."""
    settings = config(tiny_model, tmp_path)
    with on_ray(settings) as made:
        set_weights(made, other_weights(settings, 1))
        made.engines.load(made.policy.weights(), 7)
        yield made


def tokens(groups: list[RolloutGroup]) -> list[list[int]]:
    assert {c.policy_version for g in groups for c in g.completions} == {7}
    return [c.token_ids.tolist() for g in groups for c in g.completions]


@pytest.mark.slow
def test_engines_that_die_or_hang_are_replaced_with_the_weights_they_had(
    cluster, requests, tiny_model, tmp_path, caplog
):
    engines = cluster.engines
    sampling = config(tiny_model, tmp_path).rollout.sampling
    expected = tokens(completed(engines, requests, sampling))
    os.kill(processes()[0].pid, signal.SIGKILL)
    assert tokens(completed(engines, requests, sampling)) == expected
    assert engines.restarted == 1
    assert "was lost" in caplog.text
    assert "replaced, 1 of 2 times" in caplog.text

    hung = processes()[0]
    hung.suspend()
    engines._timeout_s = 15
    assert tokens(completed(engines, requests, sampling)) == expected
    assert engines.restarted == 2
    assert len(processes()) == 2
    assert not hung.is_running()

    # One dies while it is sent weights, and the others are not left half way.
    dying = processes()[0]
    dying.suspend()  # so that it dies in the transfer
    engines._restarts = 3
    killing = threading.Timer(3, dying.kill)
    killing.start()
    engines.load(cluster.policy.weights(), 7)
    assert engines.restarted == 3
    assert "the weights did not reach all engines" in caplog.text
    assert tokens(completed(engines, requests, sampling)) == expected

    os.kill(processes()[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match=r"rollout\.max_restarts=3 are used up"):
        completed(engines, requests, sampling)


@pytest.mark.slow
def test_a_copy_of_the_weights_outlives_what_the_ranks_learn(
    cluster, requests, tiny_model, tmp_path
):
    """Rollouts that run ahead: a replaced engine gets the weights that its version names."""
    settings = config(tiny_model, tmp_path)
    sampling = settings.rollout.sampling
    expected = tokens(completed(cluster.engines, requests, sampling))
    kept = cluster.policy.weights(copy=True)
    set_weights(cluster, other_weights(settings, 2))
    cluster.engines.load(kept, 7)
    assert tokens(completed(cluster.engines, requests, sampling)) == expected
    os.kill(processes()[0].pid, signal.SIGKILL)
    assert tokens(completed(cluster.engines, requests, sampling)) == expected
    assert cluster.engines.restarted == 1
    cluster.engines.load(cluster.policy.weights(), 7)
    assert tokens(completed(cluster.engines, requests, sampling)) != expected


PLUGINS = str(Path(__file__).parents[2] / "environments" / "plugins.py")


@pytest.fixture(scope="module")
def brief(tiny_model, tmp_path_factory) -> Path:
    return brief_model(tiny_model, tmp_path_factory.mktemp("models") / "brief")


def zooming(brief: Path, tmp_path: Path, **rollout: object) -> Config:
    settings = config(brief, tmp_path, max_prompt_length=96, max_response_length=160, **rollout)
    environment = {
        "tools": ["zoom"],
        "parser": f"{PLUGINS}:always_zoom",
        "max_turns": 3,
        "max_tokens_per_turn": 30,
        "workers": 1,
    }
    return settings.changed(environment=environment)


@pytest.mark.slow
@pytest.mark.vllm
def test_conversations_go_on_over_engines_of_vllm(brief, mixed, tmp_path):
    """Each by itself, with the log-probs of a transformers forward."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    settings = zooming(brief, tmp_path, engine="vllm", timeout_s=600)
    family = load_family(str(brief))
    media = MediaCache(family.prepare_media)
    asked = [asks(family.render_prompt(s), 2, i) for i, s in enumerate(read_records(mixed)[:4])]
    with (
        engines_on_ray(settings) as engines,
        closing(with_conversations(settings, engines, family, media)) as engine,
    ):
        groups = completed(engine, asked, settings.rollout.sampling)
    completions = [c for group in groups for c in group.completions]
    assert max(c.turns for c in completions) == 3
    inputs = [group_input(family, media, group) for group in groups]
    expected = padded_scores(
        load_model(settings.model), inputs, Distribution(forbidden=family.forbidden_ids)
    ).logprobs.detach()
    for c, wanted in zip(completions, expected, strict=True):
        np.testing.assert_allclose(c.logprobs, wanted[: len(c.logprobs)], atol=1e-4)


@pytest.mark.slow
def test_conversations_over_engines_are_those_of_one_process(brief, mixed, tmp_path):
    """Also where an engine dies in the middle: its turns are drawn again."""
    settings = zooming(brief, tmp_path)
    family = load_family(str(brief))
    media = MediaCache(family.prepare_media)
    asked = [asks(family.render_prompt(s), 2, i) for i, s in enumerate(read_records(mixed)[:4])]
    model = load_model(settings.model)
    model.load_state_dict(other_weights(settings, 1))
    own = HfEngine(model, family, media)
    with closing(with_conversations(settings, own, family, media)) as engine:
        expected = completed(engine, asked, settings.rollout.sampling)
    assert max(c.turns for g in expected for c in g.completions) == 3
    assert any(c.media for g in expected for c in g.completions)
    with on_ray(settings) as made:
        set_weights(made, other_weights(settings, 1))
        made.engines.load(made.policy.weights(), 7)
        engines, submit, calls = made.engines, made.engines.submit, []

        def killing(requests):
            calls.append(len(requests))
            if len(calls) == 2:
                os.kill(processes()[0].pid, signal.SIGKILL)
            return submit(requests)

        engines.submit = killing
        with closing(with_conversations(settings, engines, family, media)) as engine:
            got = completed(engine, asked, settings.rollout.sampling)
        assert engines.restarted == 1
    for one, other in zip(got, expected, strict=True):
        for a, b in zip(one.completions, other.completions, strict=True):
            assert a.policy_version == 7
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert [span.tokens for span in a.spans] == [span.tokens for span in b.spans]
            assert [m.digest() for m in a.media] == [m.digest() for m in b.media]
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_turns_of_a_prompt_stay_with_an_engine(requests):
    router = Router(2)
    assert router.route(requests, [0, 0]) == [0, 0, 1, 1]  # neighbours, who may share an image
    own = requests[0].prompt
    later = replace(requests[0], prompt=replace(own, token_ids=(*own.token_ids, 5)))
    assert router.route([later], [9, 0]) == [0]
    sample = replace(own.sample, id="new")
    new = [replace(requests[0], prompt=replace(own, sample=sample, text=f"{n}")) for n in range(4)]
    assert router.route(new, [4, 0]) == [1, 1, 1, 0]  # all engines have six completions then


@given(st.lists(st.integers(1, 5)), st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_new_prompts_are_shared_out_evenly_in_runs(sizes, loads):
    requests = [asks(Prompt(Sample(str(i), ()), "", ()), size, 0) for i, size in enumerate(sizes)]
    engines = Router(len(loads)).route(requests, loads)
    runs = [engine for engine, _ in groupby(engines)]
    assert len(runs) == len(set(runs))
    filled = list(loads)
    for engine, size in zip(engines, sizes, strict=True):
        filled[engine] += size
    # Each share is a whole number of prompts: what it has too much, those after it lack.
    most = max((filled[engine] for engine in engines), default=0)
    assert most <= min(filled) + 3 * max(sizes, default=0)
