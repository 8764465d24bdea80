"""Conversations through a real vLLM engine: log-probs, caches, order, and an engine that dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

pytest.importorskip("vllm", reason="vLLM is not installed")

from mmr1.config import OwnEnvironment, SamplingConfig, ToolsConfig
from mmr1.environments.build import build_environment
from mmr1.environments.environment import Answer, Ending, Opening
from mmr1.rollout.conversations import Player
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.prefetching import Prefetching
from mmr1.trainer.forward.sequences import group_input
from mmr1.types import Message, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.padded_forward import padded_scores
from tests.rollout.vllm_engines import BLOCK, counted, counting_engine
from tests.trainer.conversations import picture

pytestmark = pytest.mark.vllm
PLUGINS = str(Path(__file__).parents[1] / "environments" / "plugins.py")
SAMPLING = SamplingConfig(max_tokens=180)


@pytest.fixture(scope="module")
def parts(tiny_model, tmp_path_factory):
    """A model whose turns end after about six tokens, and an engine that counts its rows."""
    folder = tmp_path_factory.mktemp("conversations")
    path = folder / "model"
    shutil.copytree(tiny_model, path)
    file = path / "generation_config.json"
    options = json.loads(file.read_text())
    file.write_text(json.dumps({**options, "eos_token_id": list(range(100, 200))}))
    family = load_family(str(path))
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    log = folder / "rows"
    log.write_text("")
    arguments = (str(path), str(log), False)
    media = MediaCache(family.prepare_media)
    process = EngineProcess(
        counting_engine, arguments, media.__getitem__, folder / "log", 1, restarts=1
    )
    yield family, model, media, process, log
    process.close()


@pytest.fixture(scope="module")
def prompts(parts):
    samples = [
        Sample(str(n), (Message("user", (picture(n), TextPart(f"{n}. Which digit is it?"))),))
        for n in range(6)
    ]
    return [parts[0].render_prompt(sample) for sample in samples]


def conversing(parts, together=False, **options):
    family, _, media, process, _ = parts
    kind = OwnEnvironment if "type" in options else ToolsConfig
    config = kind(**{"max_turns": 3, "max_tokens_per_turn": 40, **options})
    engine = Prefetching(process, media, together)
    return Player(
        engine,
        build_environment(config, model_space=family.coordinates),
        config,
        family,
        media,
        together,
    )


def zooming(parts, **options):
    return conversing(parts, tools=("zoom",), parser=f"{PLUGINS}:always_zoom", **options)


def requests(prompts, n=1):
    return [asks(prompt, n, 10 * number) for number, prompt in enumerate(prompts)]


def test_log_probs_are_the_trainers_and_a_turn_costs_its_new_tokens(parts, prompts):
    family, model, media, process, log = parts
    process.load(model.state_dict(), 1)
    engine = zooming(parts)
    log.write_text("")
    groups = completed(engine, requests(prompts), SAMPLING)
    rows = counted(log)
    engine.environment.close()

    inputs = [group_input(family, media, group) for group in groups]
    expected = padded_scores(
        model, inputs, Distribution(forbidden=family.forbidden_ids)
    ).logprobs.detach()
    completions = [c for group in groups for c in group.completions]
    for completion, wanted in zip(completions, expected, strict=True):
        actual = completion.logprobs
        np.testing.assert_allclose(actual, wanted[: len(actual)], atol=1e-4)
        assert completion.policy_version == 1
    assert sum(c.turns for c in completions) > 12
    assert all(len(c.media) == c.turns - 1 for c in completions)

    distinct = {m.digest: m.tokens for g in inputs for m in g.all_media}
    assert rows["vision"] == sum(distinct.values())
    expected_rows = 0
    for group, completion in zip(inputs, completions, strict=True):
        length, computed = len(group.prompt_ids), 0
        for span in completion.spans:
            if span.role == "assistant":
                expected_rows += length - computed // BLOCK * BLOCK + span.tokens - 1
                computed = length + span.tokens - 1
            length += span.tokens
    assert rows["language"] == expected_rows


def test_one_pixel_of_a_tools_picture_changes_what_the_engine_says_next(parts, prompts):
    family, model, media, process, _ = parts
    process.load(model.state_dict(), 1)
    completions = []
    for pixel in (0, 255):
        sample = Sample("1", (Message("user", (picture(1), TextPart("Which?"))),))
        environment = Showing(picture(2, pixel=pixel))
        config = ToolsConfig(tools=("zoom",), max_turns=2, max_tokens_per_turn=40)
        prefetching = Prefetching(process, media)
        engine = Player(prefetching, environment, config, family, media, together=True)
        request = asks(family.render_prompt(sample), 1, 0)
        completions.append(completed(engine, [request], SAMPLING)[0].completions[0])
    first, second = completions
    turn, answer = (span.tokens for span in first.spans[:2])
    assert first.token_ids[: turn + answer].tolist() == second.token_ids[: turn + answer].tolist()
    assert first.logprobs[:turn].tolist() == second.logprobs[:turn].tolist()
    assert abs(first.logprobs[turn + answer] - second.logprobs[turn + answer]) > 1e-6


class Showing:
    """An environment that shows one picture."""

    tools = ()

    def __init__(self, medium):
        self.medium = medium

    def episode(self, sample):
        return self

    def begin(self, prompt):
        return Opening()

    def step(self, action):
        return Answer(cut=True) if action.last else Answer((Message("tool", (self.medium,)),))

    def end(self):
        return Ending()

    def close(self):
        """It has no processes."""


class Waiting:
    """An environment whose first answer to sample 0 comes when the other conversations are over."""

    tools = ()

    def __init__(self, others):
        self.over, self.lock, self.left = threading.Event(), threading.Lock(), others

    def episode(self, sample):
        return WaitingEpisode(self, sample.id == "0")

    def close(self):
        """It has no processes."""


class WaitingEpisode:
    def __init__(self, environment, slow):
        self.environment, self.slow, self.turns = environment, slow, 0

    def begin(self, prompt):
        return Opening()

    def step(self, action):
        self.turns += 1
        if self.slow and self.turns == 1:
            assert self.environment.over.wait(300), "the others wait for this one"
        done = self.turns == 3 or action.last
        return Answer() if done else Answer((Message("tool", (TextPart("Go on."),)),))

    def end(self):
        if not self.slow:
            with self.environment.lock:
                self.environment.left -= 1
                if not self.environment.left:
                    self.environment.over.set()
        return Ending()


def test_nobody_waits_for_the_slowest_answer(parts, prompts):
    family, model, media, process, _ = parts
    process.load(model.state_dict(), 1)
    config = ToolsConfig(tools=("zoom",), max_turns=3, max_tokens_per_turn=40, workers=2)
    environment = Waiting(others=len(prompts) - 1)
    engine = Player(Prefetching(process, media), environment, config, family, media, False)
    groups = completed(engine, requests(prompts), SAMPLING)
    assert environment.over.is_set()
    assert [group.completions[0].turns for group in groups] == [3] * len(prompts)


def test_an_engine_that_dies_is_replaced_and_the_turns_are_drawn_again(parts, prompts):
    _, model, _, process, _ = parts
    process.load(model.state_dict(), 2)
    engine = zooming(parts, together=True)
    undisturbed = completed(engine, requests(prompts), SAMPLING)
    poll, calls = process.poll, []

    def killed(wait_s=0.0):
        calls.append(wait_s)
        if len(calls) == 8:
            os.kill(process._process.pid, signal.SIGKILL)
        return poll(wait_s)

    process.poll = killed
    try:
        disturbed = completed(engine, requests(prompts), SAMPLING)
    finally:
        process.poll = poll
        engine.environment.close()
    assert process.restarted == 1
    for one, other in zip(disturbed, undisturbed, strict=True):
        (a,), (b,) = one.completions, other.completions
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.policy_version == 2
