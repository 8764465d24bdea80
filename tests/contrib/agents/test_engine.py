"""Agent programs through an engine: which tokens are learnt, and what ends an episode."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

pytest.importorskip("openai", reason="openai is not installed")

from mmr1.config import SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.forward.sequences import ModelInputs, completion_mask, group_input
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.types import Message, RolloutGroup, Sample, Status, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.images import load_image
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.agents import programs
from mmr1_contrib.agents.engine import AgentEngine
from mmr1_contrib.agents.sections import AgentConfig
from tests.asking import asks, completed
from tests.padded_forward import padded_scores

PROGRAMS = Path(__file__).with_name("programs.py")
LIBRARIES = ("gymnasium", "openenv", "verifiers")
SAMPLING = SamplingConfig(max_tokens=400)


@pytest.fixture(scope="module")
def parts(tiny_model):
    family = load_family(str(tiny_model))
    family = replace(family, stop_ids=tuple(range(100, 200)))  # after about six tokens
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    return family, model, MediaCache(family.prepare_media)


def engine_of(parts, program, **options):
    family, model, media = parts
    engine = HfEngine(model, family, media)
    config = AgentConfig(
        use=program if program in LIBRARIES else f"{PROGRAMS}:{program}",
        **{"max_tokens_per_turn": 30, "workers": 4, **options},
    )
    return AgentEngine(engine, config, family, media, together=True, limit=2000)


def rolled_out(parts, program, samples, n=2, **options):
    engine = engine_of(parts, program, **options)
    prompts = [parts[0].render_prompt(sample) for sample in samples]
    requests = [asks(prompt, n, 100 * k) for k, prompt in enumerate(prompts)]
    try:
        return completed(engine, requests, SAMPLING)
    finally:
        engine.close()


def alone(group: RolloutGroup) -> list[RolloutGroup]:
    """Each sequence as a group of its own, with no other beside it."""
    groups = []
    for completion in group.completions:
        start = 0
        for spans in completion.sequences:
            tokens = sum(span.tokens for span in spans)
            own = slice(start, start := start + tokens)
            one = replace(
                completion,
                token_ids=completion.token_ids[own],
                logprobs=completion.logprobs[own],
                spans=(replace(spans[0], fork=False), *spans[1:]),
            )
            groups.append(RolloutGroup(group.prompt, (one,)))
    return groups


def check_logprobs(parts, groups):
    """The engine's log-probs are those of the padded forward of each sequence by itself, and of
    the packed one, of all together.
    """
    family, model, media = parts
    for group in groups:
        single = alone(group)
        inputs = [group_input(family, media, g) for g in single]
        wanted = padded_scores(
            model, inputs, Distribution(forbidden=family.forbidden_ids)
        ).logprobs.detach()
        sampled = completion_mask(single)
        engines = [torch.tensor(g.completions[0].logprobs) for g in single]
        for row, mask, own in zip(wanted, sampled, engines, strict=True):
            assert mask.any()
            assert (own[mask[: len(own)]] < 0).all()
            assert not own[~mask[: len(own)]].any()
            np.testing.assert_allclose(own, row[: len(own)], atol=1e-5)
        packed = PackedModel(
            model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 4096
        ).logprobs([group])
        for row, completion in zip(packed, group.completions, strict=True):
            np.testing.assert_allclose(
                completion.logprobs, row[: len(completion.logprobs)], atol=1e-5
            )


def test_a_conversation_is_one_sequence_of_exactly_what_was_sampled(parts, digit_samples):
    groups = rolled_out(parts, "turns", digit_samples[:2])
    check_logprobs(parts, groups)
    for group in groups:
        assert group.prompt.token_ids == parts[0].render_prompt(group.prompt.sample).token_ids
        assert group.prompt.media == group.prompt.sample.media  # each encoded once
        for c in group.completions:
            assert [s.role for s in c.spans] == ["assistant", "tool"] * 2 + ["assistant"]
            assert len(c.sequences) == 1
            assert (len(c.media), c.reward, c.failure) == (2, 7.0, None)
    # What was sampled is not what its text would be read as: nothing was read again.
    tokenizer = parts[0].tokenizer
    texts = [(c.token_ids[: c.spans[0].tokens].tolist(), c) for g in groups for c in g.completions]
    assert any(tokenizer(tokenizer.decode(ids))["input_ids"] != ids for ids, _ in texts)


def test_what_matches_no_turn_is_a_sequence_of_its_own_behind_the_shared_prompt(
    parts, digit_samples
):
    family = parts[0]
    (group,) = rolled_out(parts, "forks", digit_samples[:1])
    check_logprobs(parts, [group])
    # The third conversation has another system prompt, so the prompt ends where its role begins.
    assert len(group.prompt.token_ids) < len(family.render_prompt(digit_samples[0]).token_ids)
    assert group.prompt.media == ()
    for c in group.completions:
        assert len(c.sequences) == 3
        assert c.turns == 3
        shown = [sum(len(span.media) for span in spans) for spans in c.sequences]
        assert sorted(shown) == [1, 1, 1]
        assert {spans[-1].role for spans in c.sequences} == {"assistant"}
    first, second, _ = group.completions[0].sequences
    assert first[-1].text != second[-1].text  # drawn by seeds of their own


@pytest.mark.parametrize(("program", "sequences"), [("rewrites", 2), ("writes_on", 1)])
def test_what_a_program_says_the_policy_said(parts, digit_samples, program, sequences):
    """Rewritten turns fork; text written behind a turn continues its held ids."""
    groups = rolled_out(parts, program, digit_samples[:1])
    check_logprobs(parts, groups)
    for c in groups[0].completions:
        assert (c.turns, len(c.sequences)) == (2, sequences)
        if program == "writes_on":
            assert c.spans[1].text.startswith("</code>")
            # The token that ended the turn is not in the context any more, so it is not learnt.
            assert not set(c.token_ids[: c.spans[0].tokens].tolist()) & set(parts[0].stop_ids)


def test_a_request_limits_its_tokens_and_is_told_their_logprobs(parts, digit_samples):
    (group,) = rolled_out(parts, "measured", digit_samples[:1])
    check_logprobs(parts, [group])
    for c in group.completions:
        sampled = [span.tokens for span in c.spans if span.role == "assistant"]
        assert len(sampled) == 2
        assert max(sampled) <= 3
        assert c.reward == pytest.approx(float(c.logprobs.sum()), abs=1e-5)


def test_the_same_seeds_draw_the_same_tokens(parts, digit_samples):
    first, second = (rolled_out(parts, "rewrites", digit_samples[:2]) for _ in range(2))
    for before, after in zip(first, second, strict=True):
        for one, other in zip(before.completions, after.completions, strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()


def test_one_pixel_of_a_programs_picture_changes_the_loss(parts, digit_samples):
    family, model, media = parts
    losses = []
    for pixel in (0, 255):
        groups = rolled_out(parts, "turns", digit_samples[:1], options={"pixel": pixel})
        if not losses:
            kept = groups
        # The tokens of the first run, after the pictures of this one.
        shown = [s.media for s in groups[0].completions[0].spans]
        c = kept[0].completions[0]
        spans = tuple(replace(s, media=m) for s, m in zip(c.spans, shown, strict=True))
        group = replace(kept[0], completions=(replace(c, spans=spans),))
        policy = PackedModel(
            model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 4096
        )
        losses.append(-policy.logprobs([group])[0])
    turn = kept[0].completions[0].spans[0].tokens
    assert losses[0][:turn].tolist() == losses[1][:turn].tolist()
    assert abs(float(losses[0].sum() - losses[1].sum())) > 1e-6


def test_a_program_that_misbehaves_ends_its_own_episode_and_no_other(parts):
    kinds = ("good", "hang", "raise", "flood", "die", "silent", "good")
    samples = [
        Sample(str(n), (Message("user", (TextPart("Which?"),)),), meta={"kind": kind})
        for n, kind in enumerate(kinds)
    ]
    groups = rolled_out(parts, "by_name", samples, n=1, timeout_s=3.0)
    done = [group.completions[0] for group in groups]
    failures = dict(zip(kinds, done, strict=True))
    assert [done[n].failure for n in (0, -1)] == [None, None]
    assert [done[n].reward for n in (0, -1)] == [1.0, 1.0]
    hung = failures["hang"].failure
    assert hung == (Status.TIMEOUT, "program: it was ended after 3 s between two requests")
    assert failures["raise"].failure == (Status.ERROR, "program: RuntimeError: no such page")
    status, reason = failures["flood"].failure
    assert status == Status.TIMEOUT
    assert "refused requests" in reason
    assert failures["flood"].truncated
    assert failures["flood"].turns == 16
    assert failures["die"].failure[0] == Status.KILLED
    assert failures["silent"].failure == (Status.ERROR, "program: it made no request")
    check_logprobs(parts, groups)


def test_a_program_that_cannot_be_loaded_is_refused(parts):
    with pytest.raises(ValueError, match="is not run"):
        engine_of(parts, "shown")
    with pytest.raises(ValueError, match="did you mean 'turns'"):
        engine_of(parts, "turn")


@pytest.mark.parametrize(
    ("library", "package"),
    [("gymnasium", "gymnasium"), ("openenv", "websockets"), ("verifiers", "verifiers")],
)
def test_a_library_that_is_not_installed_is_named(library, package, monkeypatch):
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ValueError, match=f"use={library} needs the package {package}"):
        programs.check(library, {})


def test_an_environment_of_gymnasium_shows_its_pictures(parts):
    pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    pytest.importorskip("pygame", reason="pygame, which draws FrozenLake, is not installed")
    asked = (Message("user", (TextPart("Go to the present."),)),)
    samples = [Sample(str(n), asked, meta={"seed": n}) for n in range(2)]
    options = {
        "id": "FrozenLake-v1",
        "actions": ["a", "e", "i", "o"],  # what a policy that knows nothing writes
        "make": {"is_slippery": False},
        "max_steps": 4,
        "bad_action": -1.0,
    }
    groups = rolled_out(parts, "gymnasium", samples, options=options)
    check_logprobs(parts, groups)
    for group in groups:
        assert len(group.prompt.media) == 1  # the board at its beginning, once for the group
        for c in group.completions:
            assert c.failure is None
            asked_again = sum("Write one of" in s.text for s in c.spans)
            assert len(c.media) + asked_again == c.turns - 1
            assert c.reward is not None
            assert -asked_again - 1 <= c.reward <= 1 - asked_again


@pytest.fixture
def openenv_server():
    """The address of a server of OpenEnv with ``Vowels``."""
    pytest.importorskip("openenv", reason="openenv is not installed")
    pytest.importorskip("websockets", reason="websockets is not installed")
    command = [sys.executable, str(PROGRAMS.with_name("openenv_server.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def test_an_environment_of_openenv_shows_its_pictures(parts, openenv_server):
    asked = (Message("user", (TextPart("Write a vowel."),)),)
    samples = [Sample(str(n), asked, meta={"reset": {"seed": n}}) for n in range(2)]
    options = {
        "url": openenv_server,
        "action": "letters",
        "text": "told",
        "picture": "board",
        "bad_action": -1.0,
    }
    groups = rolled_out(parts, "openenv", samples, n=3, max_turns=12, options=options)
    check_logprobs(parts, groups)
    ended = 0
    for n, group in enumerate(groups):
        (first,) = group.prompt.media
        assert load_image(first).getpixel((0, 0)) == (n, 0, 0)  # the seed reached reset
        for c in group.completions:
            assert c.failure is None
            accepted = [bool(set("aeiou") & set(turn.text)) for turn in c.spans[::2]]
            vowels, refused = sum(accepted), len(accepted) - sum(accepted)
            ended += vowels == 3
            assert vowels <= 3
            assert len(c.media) == vowels - accepted[-1]
            told = sum("should match pattern" in span.text for span in c.spans[1::2])
            assert told == refused - (not accepted[-1])
            assert c.reward == pytest.approx(0.5 * vowels - refused)
            steps = [load_image(m).getpixel((0, 0))[1] for m in c.media]
            assert steps == list(range(1, len(steps) + 1))
    assert ended


def test_a_server_of_openenv_that_fails_gives_no_reward(parts, openenv_server):
    asked = (Message("user", (TextPart("Write a vowel."),)),)
    sample = Sample("0", asked, meta={"reset": {"seed": -1}})
    options = {"url": openenv_server, "action": "letters"}
    ((done,),) = [g.completions for g in rolled_out(parts, "openenv", [sample], 1, options=options)]
    assert done.failure[0] == Status.ERROR
    assert "EXECUTION_ERROR: no such board" in done.failure[1]


@pytest.mark.slow
def test_an_environment_of_verifiers_asks_the_policy(parts, monkeypatch):
    pytest.importorskip("verifiers", reason="verifiers is not installed")
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS.with_name("verifiers_tasks")), prepend=":")
    samples = [
        Sample(str(n), (Message("user", (TextPart("-"),)),), meta={"task_index": n})
        for n in range(2)
    ]
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    options = {"env": {"taskset": {"id": "letters"}, "agent": agent}}
    groups = rolled_out(parts, "verifiers", samples, options=options)
    check_logprobs(parts, groups)
    for n, group in enumerate(groups):
        for c in group.completions:
            assert c.failure is None
            asked = parts[0].tokenizer.decode(group.prompt.token_ids)
            assert f"Write {n} letters." in asked + c.spans[0].text
            assert c.reward == len(c.spans[-1].text)
