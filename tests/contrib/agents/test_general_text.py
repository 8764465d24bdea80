"""Agent programs that talk to text models without a family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("openai", reason="openai is not installed")

from mmr1.config import SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import group_input
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.agents.engine import AgentEngine
from mmr1_contrib.agents.sections import AgentConfig
from tests.asking import asks, completed
from tests.vision.families.text_models import folder_of, parts_of, plain_logprobs, prompts_of

PROGRAMS = Path(__file__).with_name("programs.py")


@pytest.mark.parametrize("name", ["gemma3_text", "mistral"])
@pytest.mark.parametrize(("program", "sequences"), [("rewrites", 2), ("writes_on", 1)])
def test_programs_of_text_models(name, program, sequences):
    family, model = parts_of(name)
    often = replace(family, stop_ids=tuple(range(100, 200)))  # about one token in six ends
    media = MediaCache(family.prepare_media)
    engine = HfEngine(model, often, media)
    config = AgentConfig(use=f"{PROGRAMS}:{program}", max_tokens_per_turn=30, workers=2)
    agents = AgentEngine(engine, config, often, media, together=True, limit=2000)
    requests = [asks(prompt, 2, 7 * i) for i, prompt in enumerate(prompts_of(family))]
    try:
        groups = completed(agents, requests, SamplingConfig(max_tokens=200))
    finally:
        agents.close()
    own = AutoModelForCausalLM.from_pretrained(folder_of(name), dtype=torch.float32).eval()
    for group in groups:
        inputs = group_input(family, media, group)
        scores = completion_scores(
            model, [inputs], Distribution(forbidden=family.forbidden_ids)
        ).logprobs.detach()
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
