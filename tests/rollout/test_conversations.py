"""Conversations through an engine: tokens, masks, limits, and the trainer's log-probs.

The policies know nothing, so what they say is not a call: a parser calls a tool in every turn.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from mmr1.config import (
    AlgorithmConfig,
    OptimizerConfig,
    OwnEnvironment,
    SamplingConfig,
    ToolsConfig,
)
from mmr1.environments.build import build_environment
from mmr1.rollout.conversations import Player
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.two_turns import TwoTurns, two_turns
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs, completion_mask, group_input
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.parity import ParityError, check_parity
from mmr1.types import Message, Reward, Sample, ScoredGroup, Status, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.padded_forward import padded_scores
from tests.trainer.conversations import picture

PLUGINS = str(Path(__file__).parents[1] / "environments" / "plugins.py")
STYLES = Path(__file__).parents[1] / "contrib/migrate/tools"
TOOLS = str(Path(__file__).parents[1] / "environments" / "tools.py")
ZOOM = {"tools": ("zoom",), "boxes": "resized", "parser": f"{PLUGINS}:always_zoom"}
SAMPLING = SamplingConfig(max_tokens=400)


@pytest.fixture(scope="module")
def parts(tiny_model):
    family = load_family(str(tiny_model))
    # A turn ends after about six tokens.
    family = replace(family, stop_ids=tuple(range(100, 200)))
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    return family, model, MediaCache(family.prepare_media)


@pytest.fixture(scope="module")
def requests(parts, digit_samples):
    samples = [*digit_samples[:2], Sample("text", (Message("user", (TextPart("Think."),)),))]
    prompts = [parts[0].render_prompt(sample) for sample in samples]
    return [asks(prompt, 2, 100 * number) for number, prompt in enumerate(prompts)]


def conversing(parts, system_prompt=None, **options):
    family, model, media = parts
    kind = OwnEnvironment if "type" in options else ToolsConfig
    config = kind(**{"workers": 1, "max_tokens_per_turn": 40, **options})
    engine = HfEngine(model, family, media)
    return Player(
        engine,
        build_environment(config),
        config,
        family,
        media,
        together=True,
        system_prompt=system_prompt,
    )


@pytest.fixture(scope="module")
def groups(parts, requests):
    engine = conversing(parts, **ZOOM, max_turns=3)
    yield completed(engine, requests, SAMPLING)
    engine.close()


def completions(groups):
    return [c for group in groups for c in group.completions]


def test_turns_and_answers_follow_each_other(parts, groups):
    family, _, media = parts
    assert len(completions(groups)) == 6
    for group in groups:
        for c in group.completions:
            roles = [span.role for span in c.spans]
            assert roles[::2] == ["assistant"] * c.turns
            assert roles[1::2] == ["tool"] * (c.turns - 1)
            assert sum(span.tokens for span in c.spans) == len(c.token_ids) == len(c.logprobs)
            shown = sum(media[m].tokens for m in c.media)
            assert c.token_ids.tolist().count(family.image_id) == shown
            pictures = len(c.media)
            assert pictures == (c.turns - 1 if group.prompt.media else 0)
    assert max(c.turns for c in completions(groups)) == 3


def test_sampled_tokens_are_the_engines_own(parts, groups):
    """Masked tokens have no log-prob; the others have the one they were sampled with."""
    family, model, media = parts
    mask = completion_mask(groups)
    inputs = [group_input(family, media, group) for group in groups]
    expected = padded_scores(
        model, inputs, Distribution(forbidden=family.forbidden_ids)
    ).logprobs.detach()
    for row, sampled, wanted in zip(completions(groups), mask, expected, strict=True):
        own = row.logprobs[sampled[: len(row.logprobs)]]
        assert (own < 0).all()
        assert not row.logprobs[~sampled[: len(row.logprobs)]].any()
        np.testing.assert_allclose(row.logprobs, wanted[: len(row.logprobs)], atol=1e-5)
    # What was sampled is not what its text would be read as: nothing was read again.
    turns = [c.token_ids[: c.spans[0].tokens].tolist() for c in completions(groups)]
    assert any(family.tokenizer(family.tokenizer.decode(t))["input_ids"] != t for t in turns)


def test_one_pixel_of_a_tools_picture_changes_what_is_said_next(parts):
    family, model, media = parts
    prompt = family.render_prompt(Sample("1", (Message("user", (TextPart("Look."),)),)))
    said = []
    for pixel in (0, 255):
        shown = TwoTurns(Message("tool", (picture(2, pixel=pixel),)))
        config = ToolsConfig(tools=("zoom",), max_turns=2, max_tokens_per_turn=40)
        engine = HfEngine(model, family, media)
        conversing = Player(engine, shown, config, family, media, together=True)
        ((c,),) = (g.completions for g in completed(conversing, [asks(prompt, 1, 0)], SAMPLING))
        conversing.close()
        said.append(c)
    first, second = said
    before = sum(span.tokens for span in first.spans[:2])
    assert first.token_ids[:before].tolist() == second.token_ids[:before].tolist()
    assert first.logprobs[:before].tolist() == second.logprobs[:before].tolist()
    assert abs(first.logprobs[before] - second.logprobs[before]) > 1e-6


PLOT = """
import numpy as np
from PIL import Image


def plot() -> Image.Image:
    \"\"\"Show a picture.\"\"\"
    colours = np.random.default_rng(3).integers(0, 255, (84, 84, 3), np.uint8)
    colours[40, 40, 1] = {pixel}
    return Image.fromarray(colours)


def always(text):
    return [{{"name": "plot", "arguments": {{}}}}]
"""


def test_one_pixel_of_a_tools_picture_changes_the_loss_and_the_gradient(parts, tmp_path):
    """A real tool's picture, through its process, the conversation and an update."""
    family, model, media = parts
    prompt = family.render_prompt(Sample("1", (Message("user", (TextPart("Look."),)),)))
    groups = []
    for pixel in (0, 0, 255):
        file = tmp_path / f"plot{len(groups)}.py"
        file.write_text(PLOT.format(pixel=pixel))
        engine = conversing(parts, tools=(f"{file}:plot",), parser=f"{file}:always", max_turns=2)
        groups += completed(engine, [asks(prompt, 2, 0)], SAMPLING)
        engine.close()
    assert all(c.media for group in groups for c in group.completions)
    learnt = []
    for group in groups:  # the first run's tokens, after the pictures of each
        kept = zip(groups[0].completions, group.completions, strict=True)
        of_both = tuple(with_media_of(c, other) for c, other in kept)
        scored = ScoredGroup(replace(group, completions=of_both), (Reward(1.0), Reward(0.0)))
        learnt.append(update(copy.deepcopy(model), family, media, scored))
    (loss, gradient), (again, same), (other, moved) = learnt
    assert loss == again
    assert all(torch.equal(gradient[name], same[name]) for name in gradient)
    assert abs(loss - other) > 1e-6
    towers = [name for name in gradient if "visual" in name]
    assert towers
    assert any(not torch.equal(gradient[name], moved[name]) for name in towers)


def with_media_of(completion, other):
    spans = zip(completion.spans, other.spans, strict=True)
    return replace(completion, spans=tuple(replace(s, media=o.media) for s, o in spans))


def update(model, family, media, scored):
    """The loss of a policy-gradient update, and its gradient."""
    config = AlgorithmConfig(name="rloo", loss="reinforce")
    settings = OptimizerConfig(max_grad_norm=1e9, scheduler={"warmup_steps": 0})
    policy = LocalPolicy(
        PackedModel(
            model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 4096
        ),
        build_algorithm(config),
        Optimizer(model, settings, 1),
        1,
    )
    caught = {}

    def step():
        caught.update(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )
        return {"grad_norm": 0.0, "lr": 0.0}

    policy.optimizer.step = step
    stats = policy.update(build_experience([scored], build_algorithm(config), Models(policy)))
    return stats["loss"], caught


class Other:
    """A policy whose update sees another picture in the place of the tool's."""

    def __init__(self, policy):
        self.policy = policy

    def logprobs(self, groups):
        other = picture(5, 84, 84)
        return self.policy.logprobs(
            [
                replace(
                    group,
                    completions=tuple(
                        replace(
                            c,
                            spans=tuple(
                                replace(s, media=(other,)) if s.media else s for s in c.spans
                            ),
                        )
                        for c in group.completions
                    ),
                )
                for group in groups
            ]
        )


def test_the_check_at_the_start_holds_conversations_of_two_turns(parts, requests):
    family, model, media = parts
    limits = ToolsConfig(tools=("zoom",), max_tokens_per_turn=16)
    engine = HfEngine(model, family, media)
    rehearsal = Player(
        engine, two_turns(shows_picture=True), limits, family, media, True, ends_when_cut=False
    )
    prompts = [request.prompt for request in requests]
    for c in completions(completed(rehearsal, requests, SAMPLING)):
        assert [span.role for span in c.spans] == ["assistant", "tool", "assistant"]
        assert len(c.media) == 1
    policy = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 4096
    )
    checked = (family, media, prompts, SAMPLING, 1e-4, False, SAMPLING.max_tokens)
    parity = check_parity(rehearsal, policy, *checked)
    assert parity.prompts == len(prompts)
    with pytest.raises(ParityError, match="log-probs of the rollout engine and the trainer"):
        check_parity(rehearsal, Other(policy), *checked)
    rehearsal.close()


def test_an_answer_is_written_as_the_chat_template_writes_it(parts, groups):
    family, _, _ = parts
    c = next(c for g in groups for c in g.completions if not g.prompt.media and c.turns == 3)
    first, answer, second = (span.tokens for span in c.spans[:3])
    ended = c.token_ids[first - 1] in family.stop_ids
    text = family.tokenizer.decode(c.token_ids[first : first + answer])
    error = "Error: image=0: the conversation has 0 pictures, numbered from 0"
    assert ended
    assert text == (
        f"\n<|im_start|>user\n<tool_response>\n{error}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert c.spans[1].text == error
    said = family.chat.completion_text(c.token_ids[first + answer :][:second])
    assert c.spans[2].text == said
    assert c.spans[0].calls[0].error == error.removeprefix("Error: ")


def test_the_last_turn_that_calls_is_cut(groups):
    for c in completions(groups):
        assert c.truncated
        assert c.text == c.spans[-1].text
        assert len(c.spans[-1].calls) == (c.turns == 3)


def test_a_conversation_repeats_itself_and_does_not_depend_on_others(parts, requests, groups):
    engine = conversing(parts, **ZOOM, max_turns=3)
    for request, group in zip(requests, groups, strict=True):
        (alone,) = completed(engine, [request], SAMPLING)
        for a, b in zip(alone.completions, group.completions, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert [m.digest() for m in a.media] == [m.digest() for m in b.media]
    engine.close()
    assert len({tuple(c.token_ids) for c in completions(groups)}) == 6


def test_a_turn_without_a_call_is_an_answer(parts, requests):
    engine = conversing(parts, tools=("zoom",))
    for c in completions(completed(engine, requests, SAMPLING)):
        assert [span.role for span in c.spans] == ["assistant"]
        assert not c.truncated
    engine.close()


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({"max_images": 1}, 400), ({}, 45), ({"max_tokens_per_turn": 2}, 400)],
    ids=["pictures", "tokens", "tokens of a turn"],
)
def test_limits_end_a_conversation_and_are_told(parts, requests, options, tokens):
    engine = conversing(parts, **ZOOM, max_turns=9, **options)
    groups = completed(engine, requests[:1], SAMPLING.changed({"max_tokens": tokens}))
    engine.close()
    for c in completions(groups):
        assert c.truncated
        assert len(c.token_ids) <= tokens
        assert len(c.media) <= options.get("max_images", 9)
        assert c.spans[-1].role == "assistant"
        for span in c.spans:
            assert span.role == "tool" or span.tokens <= options.get("max_tokens_per_turn", 40)


def test_a_picture_that_cannot_be_shown_is_an_error_of_its_call(parts, requests):
    options = {"tools": (f"{TOOLS}:huge",), "parser": f"{PLUGINS}:always_a_line", "max_turns": 2}
    engine = conversing(parts, **options)
    (group,) = completed(engine, [replace(requests[0], seeds=(0,))], SAMPLING)
    engine.close()
    first, told = group.completions[0].spans[:2]
    (call,) = first.calls
    assert call.name == "huge"
    assert "cannot be shown" in call.error
    assert told.text == f"Error: {call.error}"
    assert not told.media


def test_an_environment_of_ones_own(parts, requests):
    """It counts the turns of each conversation by itself, and gives a reward for each."""
    engine = conversing(parts, type=f"{PLUGINS}:Counter", until=3, workers=2)
    groups = completed(engine, requests, SAMPLING)
    engine.close()
    for c in completions(groups):
        assert [s.reward for s in c.spans] == [
            0.5 if s.role == "assistant" else None for s in c.spans
        ]
        if not c.truncated:
            assert c.turns == 3
            assert [s.text for s in c.spans if s.role == "tool"] == ["turn 1", "turn 2"]
            assert c.reward == pytest.approx(1.5)
    assert sum(not c.truncated for c in completions(groups)) >= 3


def test_an_agent_of_openrlhf_writes_the_templates_tokens_itself(parts, requests):
    """What it answers is tokenised as it is, and its picture stands where it says."""
    family, model, media = parts
    engine = conversing(parts, type=f"{STYLES}/agent_func.py:AgentInstance", timeout_s=60)
    groups = completed(engine, requests, SAMPLING)
    engine.close()
    whole = [(g.prompt.sample.answer, c) for g in groups for c in g.completions if c.turns == 3]
    assert whole
    for label, c in whole:
        ends = np.cumsum([span.tokens for span in c.spans])
        asked, looked = (c.token_ids[ends[n] : ends[n + 1]].tolist() for n in (0, 2))
        said = f"\n<|im_start|>user\nTurn 1, label {label}.<|im_end|>\n<|im_start|>assistant\n"
        assert asked == family.tokenizer(said)["input_ids"]
        assert looked.count(family.image_id) == media[c.media[0]].tokens
        assert c.reward == 0.5
    inputs = [group_input(family, media, group) for group in groups]
    expected = padded_scores(
        model, inputs, Distribution(forbidden=family.forbidden_ids)
    ).logprobs.detach()
    for c, wanted in zip(completions(groups), expected, strict=True):
        np.testing.assert_allclose(c.logprobs, wanted[: len(c.logprobs)], atol=1e-5)


def test_placeholders_without_pictures_are_a_status(parts, requests):
    sample = replace(requests[2].prompt.sample, answer="picture")
    request = asks(parts[0].render_prompt(sample), 1, 0)
    engine = conversing(parts, type=f"{STYLES}/agent_func.py:Misuse", timeout_s=60)
    ((c,),) = (g.completions for g in completed(engine, [request], SAMPLING))
    engine.close()
    assert c.failure[0] == Status.ERROR
    assert "placeholders" in c.failure[1]


def test_an_environment_of_trl_adds_to_the_prompt(parts, requests):
    family, model, media = parts
    own = {"type": f"{STYLES}/trl_environment.py:NumberEnv", "parser": f"{PLUGINS}:always_guess"}
    engine = conversing(parts, "Be brief.", **own, max_turns=3)
    samples = [replace(r.prompt.sample, answer="7", meta={"limit": 9}) for r in requests[1:]]
    prompts = [family.render_prompt(s, "Be brief.") for s in samples]
    groups = completed(engine, [asks(prompt, 2, 7) for prompt in prompts], SAMPLING)
    engine.close()
    for group, prompt in zip(groups, prompts, strict=True):
        before, end, after = prompt.text.rpartition("<|im_end|>")
        assert group.prompt.text == before + " It is at most 9." + end + after
        assert group.prompt.sample.messages[-1].text.endswith(" It is at most 9.")
        assert family.tokenizer.decode(group.prompt.token_ids) == group.prompt.text
        assert " It is at most 9.<|im_end|>" in group.prompt.text
        for c in group.completions:
            told = [span.text for span in c.spans if span.role == "tool"]
            assert told == ["right", "Error: Game over."][: len(told)]
            assert c.reward == float("right" in told)
    assert any(c.reward for c in completions(groups))
    expected = padded_scores(
        model,
        [group_input(family, media, g) for g in groups],
        Distribution(forbidden=family.forbidden_ids),
    ).logprobs.detach()
    for c, wanted in zip(completions(groups), expected, strict=True):
        np.testing.assert_allclose(c.logprobs, wanted[: len(c.logprobs)], atol=1e-5)


def test_a_prompt_without_a_user_that_an_environment_adds_to_is_a_status(parts):
    sample = Sample("1", (Message("system", (TextPart("Play."),)),), "7", meta={"limit": 9})
    engine = conversing(parts, type=f"{STYLES}/trl_environment.py:NumberEnv", timeout_s=60)
    requests = [asks(parts[0].render_prompt(sample), 1, 0)]
    ((c,),) = (group.completions for group in completed(engine, requests, SAMPLING))
    engine.close()
    status, why = c.failure
    assert status == Status.ERROR
    assert "the prompt has no message of the user to add it to" in why


def test_texts_that_differ_within_a_group_are_refused(parts, requests):
    engine = conversing(parts, type=f"{STYLES}/trl_environment.py:Varied")
    with pytest.raises(ValueError, match="reset returned different texts"):
        completed(engine, requests[2:], SAMPLING)
    engine.close()


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("BreaksAtReset", Status.ERROR, "reset: ZeroDivisionError"),
        ("BreaksAtStep", Status.ERROR, "step: ZeroDivisionError"),
        ("DiesAtStep", Status.KILLED, "step: its process"),
        ("HangsAtStep", Status.TIMEOUT, "step: no answer in 1 s"),
        ("OddReward", Status.ERROR, "step: step returned a str as reward"),
        ("NanReward", Status.ERROR, "step: step returned nan as reward"),
    ],
)
def test_a_broken_environment_is_a_status(parts, requests, name, status, message):
    engine = conversing(parts, type=f"{PLUGINS}:{name}", timeout_s=1)
    groups = completed(engine, [replace(requests[0], seeds=(0,))], SAMPLING)
    engine.close()
    for c in completions(groups):
        assert c.failure is not None
        assert c.failure[0] == status
        assert message in c.failure[1]
        assert c.turns == 1
        assert c.reward is None
