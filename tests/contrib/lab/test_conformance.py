"""Conformance: sound engines pass every check, and a planted fault is found by its own check."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmr1.config.file import config_from
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import Finished, Request
from mmr1.trainer.models.loading import load_here
from mmr1.types import Completion, Prompt
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.tiny import new_model
from mmr1_contrib.lab.conformance.bench import Bench, bench_of, opened_bench, parity_config
from mmr1_contrib.lab.conformance.checks import CHECKS
from tests.paths import REPOSITORY

Change = Callable[[Request], Request]
Say = Callable[[Completion, Request, int], Completion]


class Faulty:
    """The engine of transformers with a fault: in what it is asked, says or loads."""

    def __init__(self, engine: HfEngine) -> None:
        self.engine, self.requests = engine, dict[int, Request]()
        self.ask: Change = lambda request: request
        self.say: Say = lambda completion, request, index: completion
        self.take: Callable[[Any, int], None] = engine.load
        self.see: Callable[[Prompt], Prompt] = lambda prompt: prompt

    def submit(self, requests: Sequence[Request]) -> list[int]:
        asked = [self.ask(replace(r, prompt=self.see(r.prompt))) for r in requests]
        tickets = self.engine.submit(asked)
        self.requests |= dict(zip(tickets, requests, strict=True))
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        return [
            replace(e, completion=self.say(e.completion, self.requests[e.ticket], e.index))
            for e in self.engine.poll(wait_s)
        ]

    def load(self, weights: Any, version: int) -> None:
        self.take(weights, version)

    def cancel(self) -> int:
        return self.engine.cancel()

    def probe(self, prompts: Sequence[Prompt]) -> list[Any]:
        return self.engine.probe([self.see(prompt) for prompt in prompts])

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def opened(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench over an engine that has weights of its own, as an engine on Ray has them."""
    config = parity_config(str(tiny_model), ["rollout.engine=hf", "model.dtype=float32"])
    family = family_of(config)
    media = media_cache(family, config)
    model, other = (load_here(config.model, True, "model.path") for _ in range(2))
    engine = Faulty(HfEngine(other, family, media))
    folder = tmp_path_factory.mktemp("conformance")
    bench = bench_of(engine, config, family, model, folder, lambda w, v: engine.load(w, v))
    bench.load(bench.weights(), 0)
    return bench


@pytest.fixture
def bench(opened: Bench) -> Iterator[Bench]:
    """The same without a fault, and with the weights that all have."""
    yield opened
    inner: HfEngine = opened.engine.engine  # type: ignore[attr-defined]
    opened.engine = Faulty(inner)
    opened.load = inner.load
    opened.load(opened.weights(), opened.version)
    opened.load = lambda w, v: opened.engine.load(w, v)


@pytest.mark.parametrize("name", CHECKS)
def test_sound_engine_passes(bench: Bench, name: str) -> None:
    verdict = CHECKS[name](bench)
    assert verdict.passed, verdict.measured


def sampling(**values: Any) -> Callable[[Faulty], None]:
    """A sampling that is not the one asked for."""

    def plant(engine: Faulty) -> None:
        engine.ask = lambda r: replace(r, sampling=r.sampling.changed(**values))

    return plant


def asked(change: Change) -> Callable[[Faulty], None]:
    return lambda engine: setattr(engine, "ask", change)


def said(change: Say) -> Callable[[Faulty], None]:
    return lambda engine: setattr(engine, "say", change)


def shown(change: Callable[[Prompt], Prompt]) -> Callable[[Faulty], None]:
    return lambda engine: setattr(engine, "see", change)


def media_of(prompt: Prompt, media: Sequence[Any]) -> Prompt:
    return replace(prompt, shown=tuple(media))


def grey(request: Request) -> Request:
    kept = ("nframes", "blank")
    views = [
        replace(m, options={k: v for k, v in {**m.options, "blank": 1.0}.items() if k in kept})
        for m in request.prompt.media
    ]
    return replace(request, prompt=media_of(request.prompt, views))


def cut(request: Request) -> Request:
    """A window in which the beginning of a long text is lost."""
    text = request.prompt.text
    return request if len(text) < 5000 else replace(request, prompt=replaced(request, text))


def replaced(request: Request, text: str) -> Prompt:
    return replace(request.prompt, text=text.replace("red " * 2000, "red "))


def other_rate(prompt: Prompt) -> Prompt:
    """Frames of a faster video with the times of a slower one."""
    media = [
        replace(m, path=m.path.with_name("video.mp4")) if m.path.name == "faster.mp4" else m
        for m in prompt.media
    ]
    return media_of(prompt, media)


def reversed_frames(prompt: Prompt) -> Prompt:
    names = {"video.mp4": "reversed.mp4", "reversed.mp4": "video.mp4"}
    media = [
        replace(m, path=m.path.with_name(names.get(m.path.name, m.path.name))) for m in prompt.media
    ]
    return media_of(prompt, media)


def first_seed(request: Request) -> Request:
    return replace(request, seeds=(request.seeds[0],) * len(request.seeds))


def reordered(request: Request) -> Request:
    """Rows in another order, if there are several: row 0 is no longer that of the first seed."""
    return replace(request, seeds=request.seeds[::-1])


class Drawn:
    """Seeds by the clock, as an engine has them that is given none."""

    count = 0

    def __call__(self, request: Request) -> Request:
        self.count += 100
        return replace(request, seeds=tuple(seed + self.count for seed in request.seeds))


def off(completion: Completion, request: Request, index: int) -> Completion:
    return replace(completion, logprobs=completion.logprobs + np.float32(0.01))


def of_all_ids(completion: Completion, request: Request, index: int) -> Completion:
    """Log-probs of the whole distribution in place of the cut one."""
    smaller = completion.logprobs - np.float32(0.2)
    return completion if completion.support is None else replace(completion, logprobs=smaller)


def one_id_more(completion: Completion, request: Request, index: int) -> Completion:
    if (support := completion.support) is None:
        return completion
    ids = np.insert(support.ids, 0, 0 if 0 not in support.ids[: support.sizes[0]] else 1)
    sizes = support.sizes.copy()
    sizes[0] += 1
    return replace(completion, support=replace(support, ids=ids, sizes=sizes))


def without_support(completion: Completion, request: Request, index: int) -> Completion:
    return replace(completion, support=None)


def never_truncated(completion: Completion, request: Request, index: int) -> Completion:
    return replace(completion, truncated=False)


def past_the_stop(request: Request) -> Request:
    return replace(request, sampling=request.sampling.changed(stop=()))


def stale(engine: Faulty) -> None:
    engine.take = lambda weights, version: engine.engine.load({}, version)


def old_version(engine: Faulty) -> None:
    sound = engine.take
    engine.take = lambda weights, version: sound(weights, 0)


def half_loaded(engine: Faulty) -> None:
    """Copies one weight after another, until one does not fit."""

    def take(weights: Any, version: int) -> None:
        own = engine.engine._model.state_dict()
        for name, weight in weights.items():
            own[name].copy_(weight)
        engine.engine.load({}, version)

    engine.take = take


def placeholders(engine: Faulty) -> None:
    """Nothing is forbidden."""

    class Family:
        forbidden_ids = ()

        def __getattr__(self, name: str) -> Any:
            return getattr(own, name)

    own = engine.engine._family
    engine.engine._together = replace(engine.engine._together, family=Family())


FAULTS: dict[str, tuple[Callable[[Faulty], None], str]] = {
    "picture_is_grey": (asked(grey), "the picture is seen"),
    "pictures_exchanged": (
        shown(lambda p: media_of(p, p.media[::-1])),
        "two pictures keep their order",
    ),
    "frames_reversed": (shown(reversed_frames), "a video's frames and times"),
    "other_times": (shown(other_rate), "a video's frames and times"),
    "temperature_ignored": (sampling(temperature=1.0), "log-probs are the model's"),
    "greedy_is_sampled": (sampling(temperature=0.8), "greedy tokens are the best"),
    "logprobs_1_percent": (said(off), "log-probs are the model's"),
    "rows_are_copies": (asked(first_seed), "rows differ"),
    "seeds_are_ignored": (asked(Drawn()), "a seed repeats"),
    "rows_reordered": (asked(reordered), "one row is the first of eight"),
    "stop_string_ignored": (asked(past_the_stop), "stops"),
    "flag_of_the_limit": (said(never_truncated), "stops"),
    "top_p_ignored": (sampling(top_p=1.0), "kept ids"),
    "top_k_is_5": (sampling(top_k=5), "kept ids"),
    "kept_ids_missing": (said(without_support), "kept ids"),
    "one_id_more": (said(one_id_more), "kept ids"),
    "logprobs_of_all_ids": (said(of_all_ids), "kept ids"),
    "placeholders_drawn": (placeholders, "forbidden tokens"),
    "long_prompt_is_cut": (asked(cut), "a long prompt is not cut"),
    "stale_weights": (stale, "new weights are used"),
    "old_version": (old_version, "new weights are used"),
    "half_loaded": (half_loaded, "a failed load keeps the old"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_by_its_check(bench: Bench, name: str) -> None:
    plant, check = FAULTS[name]
    plant(bench.engine)
    verdict = CHECKS[check](bench)
    assert verdict.passed is False, verdict.measured


def test_text_model_has_no_media_checks(tmp_path: Path, mmr1) -> None:
    new_model(tmp_path / "text", family="qwen2")
    given = ("model.dtype=float32", "rollout.engine=hf")
    code, out, error = mmr1("parity", tmp_path / "text", *given)
    assert code == 0, out + error
    assert "the model takes no media" in out


def test_gap_above_tolerance_exits_1(tiny_model: Path, mmr1) -> None:
    given = ("model.dtype=float32", "rollout.engine=hf", "rollout.parity_tolerance=1e-12")
    code, out, _ = mmr1("parity", tiny_model, *given)
    assert code == 1
    assert "FAIL" in out


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "in_process"])
def test_vllm_passes(tiny_model: Path, apart: bool, monkeypatch) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    if not apart:
        from mmr1.rollout import build_vllm

        monkeypatch.setattr(build_vllm, "in_process", in_this_process)
    config = parity_config(str(tiny_model), ["model.dtype=float32"])
    with opened_bench(config) as bench:
        assert failing(bench) == {}


def in_this_process(setting: Any) -> Any:
    from mmr1.rollout.build_vllm import build_vllm_engine

    return build_vllm_engine(setting.media.__getitem__, setting.config)


def failing(bench: Bench) -> dict[str, str]:
    verdicts = {name: check(bench) for name, check in CHECKS.items()}
    return {name: v.measured for name, v in verdicts.items() if not v.passed}


@pytest.mark.slow
def test_engines_on_ray_pass(tiny_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    from mmr1.trainer.distributed.cluster import on_ray
    from mmr1.trainer.models.packed_model import PackedModel

    values = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "rollout": {"engine": "hf", "max_prompt_length": 1024, "max_response_length": 64},
        "rewards": {"format": 1.0},
        "resources": {"engines": 2},
        "trainer": {"threads": 1, "output_dir": str(tmp_path)},
    }
    config = config_from(values)
    model = load_here(config.model, True, "model.path")
    with on_ray(config) as cluster:

        def load(weights: dict[str, torch.Tensor], version: int) -> None:
            ranks = cluster.ranks.part(lambda models: models.policy._packed_model)
            ranks.load_weights(PackedModel.load_weights, weights)
            cluster.engines.load(cluster.policy.weights(), version)

        bench = bench_of(cluster.engines, config, family_of(config), model, tmp_path, load)
        load(bench.weights(), 0)
        assert failing(bench) == {}


def test_pytest_runs_it_for_any_engine(tiny_model: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    given = ["--pyargs", "mmr1_contrib.lab.conformance", "--engine", "hf", "--model", tiny_model]
    result = subprocess.run(
        [sys.executable, *command, *given],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(CHECKS)} passed" in result.stdout
