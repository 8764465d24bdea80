"""Written answers of a record as completions: demonstrations, preference pairs, rankings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmr1.types import Completion, Prompt, RolloutGroup, Sample
from mmr1.vision.families.family import ModelFamily


def group_of_responses(family: ModelFamily, prompt: Prompt, texts: Sequence[str]) -> RolloutGroup:
    """Each text with the end-of-sequence token, as if sampled (with log-probs of 0)."""
    return RolloutGroup(prompt, tuple(_completion(family, text) for text in texts))


def demonstration(family: ModelFamily, prompt: Prompt) -> RolloutGroup:
    """The assistant's answer at the end of the prompt's sample, as a group of one."""
    return group_of_responses(family, prompt, [assistant_text(prompt.sample)])


def assistant_text(sample: Sample) -> str:
    """The demonstration at the end of a sample. Raises ValueError when there is none."""
    last = sample.messages[-1]
    if last.role != "assistant" or not last.text:
        raise ValueError(
            f"sample '{sample.id}' has no assistant message at its end; supervised fine-tuning "
            "needs a demonstration in every record"
        )
    return last.text


def _completion(family: ModelFamily, text: str) -> Completion:
    ids = family.tokenizer(text, add_special_tokens=False)["input_ids"]
    tokens = np.array([*ids, family.tokenizer.eos_token_id], dtype=np.int64)
    return Completion(tokens, np.zeros(len(tokens), dtype=np.float32), text, False, 0)
