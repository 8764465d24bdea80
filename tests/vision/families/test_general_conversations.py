"""Conversations with tools through models that mmr1 does not name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mmr1.config import SamplingConfig, ToolsConfig
from mmr1.data.responses import demonstration
from mmr1.rollout.conversations import Player
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.two_turns import TwoTurns
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import TokenScores, completion_mask
from mmr1.types import Message, Sample, TextPart
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.vision.families.comparisons import assert_same
from tests.vision.families.conversations import conversations, groups_of
from tests.vision.families.general_family import GENERAL, IMAGE, SQUARE, General, scores_of

# Of several pictures in one text LLaVA-OneVision's processor cuts none into crops.
ONE_BY_ONE = "llava_onevision"
TOGETHER = [name for name in GENERAL if name != ONE_BY_ONE]


def plain_scores(general: General, model, groups) -> TokenScores:
    """Each conversation by the model's own forward; the processor sees all of its pictures."""
    media, logits, rows = MediaCache(general.family.prepare_media), [], []
    for group, inputs in zip(groups, general.inputs(groups), strict=True):
        for completion in group.completions:
            rows.append(torch.tensor(completion.token_ids))
            ids = torch.cat([inputs.prompt_ids, rows[-1]])[None]
            shown = [media[m] for m in (*group.prompt.media, *completion.media)]
            given = general.family.arguments_of_media(ids[0], shown)
            given |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            logits.append(model(**given, use_cache=False).logits)
    whole, sampled = scores_of(general, logits, rows), completion_mask(groups)
    return TokenScores(whole.logprobs * sampled, whole.entropy * sampled)


@pytest.fixture(params=[False, True], ids=["padded", "packed"])
def packed(request) -> bool:
    return request.param


@pytest.mark.parametrize("name", TOGETHER)
def test_scores_and_gradients_are_those_of_each_conversation_by_itself(name, packed):
    general = GENERAL[name]
    model, groups = general.model(packed), groups_of(general)
    got = completion_scores(
        model, general.inputs(groups), Distribution(forbidden=general.family.forbidden_ids)
    )
    assert_same(model, got, plain_scores(general, model, groups))


@pytest.mark.parametrize("name", [ONE_BY_ONE, "gemma3"])
def test_packed_is_padded(name):
    general = GENERAL[name]
    groups = groups_of(general)
    packed, padded = (
        completion_scores(general.model(p), general.inputs(groups)).logprobs for p in (True, False)
    )
    torch.testing.assert_close(packed, padded, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", GENERAL)
def test_what_is_sampled_after_a_picture_is_what_the_trainer_scores(name):
    general = GENERAL[name]
    family, model = general.family, general.model()
    media = MediaCache(family.prepare_media)
    engine = HfEngine(model, family, media)
    shown = TwoTurns(Message("tool", (TextPart("Look again."), SQUARE)))
    config = ToolsConfig(tools=("zoom",), max_turns=2, max_tokens_per_turn=5)
    conversing = Player(engine, shown, config, family, media, together=True, ends_when_cut=False)
    prompts = [general.group(refs, 0).prompt for refs in ((), (IMAGE,))]
    requests = [asks(prompt, 2, 10 * i) for i, prompt in enumerate(prompts)]
    groups = completed(conversing, requests, SamplingConfig(max_tokens=200))
    conversing.close()
    scores = completion_scores(
        general.model(packed=True),
        general.inputs(groups),
        Distribution(forbidden=family.forbidden_ids),
    ).logprobs
    for completion, row in zip([c for g in groups for c in g.completions], scores, strict=True):
        assert [span.role for span in completion.spans] == ["assistant", "tool", "assistant"]
        assert completion.media == (SQUARE,)
        wanted = row[: len(completion.token_ids)].detach().numpy()
        np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-5)


def test_demonstrations_with_answers_of_tools():
    """Their tokens are those of the same turns, the pictures' among them."""
    general = GENERAL["idefics3"]
    family = general.family
    call = Message("assistant", (TextPart("zoom"),))
    answer = Message("tool", (SQUARE, TextPart("closer")))
    turns = (Message("user", (TextPart("What?"),)), call, answer, call)
    media = MediaCache(family.prepare_media)
    group = demonstration(family, family.render_prompt(Sample("s", turns)), media)
    (completion,) = group.completions
    assert [span.role for span in completion.spans] == ["assistant", "tool", "assistant"]
    text = family.chat.observation_text([answer], ended=True)
    assert completion.spans[1].tokens == len(family.read_text(text, [media[SQUARE]]))
    got = completion_scores(general.model(), general.inputs([group])).logprobs
    assert (got[0] != 0).sum() == completion.sampled_tokens


def test_a_picture_of_another_size_where_sizes_are_not_filled_up():
    general = GENERAL["glm4v"]
    (inputs,) = general.inputs([conversations(general, 1, (IMAGE,), [[(SQUARE,)]])])
    odd = {**inputs.arguments, "image_grid_thw": torch.ones(1, 4, dtype=torch.int64)}
    with pytest.raises(ValueError, match=r"'image_grid_thw' of shapes .* several sizes"):
        completion_scores(general.model(), [replace(inputs, arguments=odd)])
