"""Written answers of a record as completions, such as demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import numpy as np

from mmr1.types import Completion, Message, Prompt, RolloutGroup, Sample, Span, media_of
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


def group_of_responses(family: ModelFamily, prompt: Prompt, texts: Sequence[str]) -> RolloutGroup:
    """The texts as completions with log-probs of 0, each with the token that ends a turn."""
    return RolloutGroup(prompt, tuple(_completion(family, text) for text in texts))


def demonstration(family: ModelFamily, prompt: Prompt, media: MediaCache) -> RolloutGroup:
    """The assistant's answer at the end of the prompt's sample, as a group of one.

    With the turns before it since the last message of the user, and the answers of tools between
    them, if there are any.

    Raises:
        ValueError: The chat template cannot write answers of tools.
    """
    sample = prompt.sample
    text = assistant_text(sample)
    messages = sample.messages[sample.demonstrated_from :]
    if len(messages) == 1:
        return group_of_responses(family, prompt, [text])
    return RolloutGroup(prompt, (_conversation(family, messages, media),))


def assistant_text(sample: Sample) -> str:
    """The demonstration at the end of a sample.

    Raises:
        ValueError: If the sample has no demonstration, or one of its turns has an image.
    """
    last = sample.messages[-1]
    if last.role != "assistant" or not last.text:
        raise ValueError(
            f"sample '{sample.id}' has no assistant message at its end; supervised fine-tuning "
            "needs a demonstration in every record"
        )
    learned = [m for m in sample.messages[sample.demonstrated_from :] if m.role == "assistant"]
    if media_of(learned):
        raise ValueError(
            f"sample '{sample.id}' has a picture or a video in a turn of the assistant, which a "
            "model that writes text cannot learn; move it into a message of the user or of a tool"
        )
    return last.text


def _completion(family: ModelFamily, text: str) -> Completion:
    tokens = np.array(family.chat.response_tokens(text), dtype=np.int64)
    return Completion(tokens, np.zeros(len(tokens), dtype=np.float32), text, False, 0)


def _conversation(
    family: ModelFamily, messages: Sequence[Message], media: MediaCache
) -> Completion:
    """Turns of the assistant with answers of tools between them."""
    ids: list[int] = []
    spans = []
    for role, run in groupby(messages, key=lambda message: message.role):
        of_run, before = list(run), len(ids)
        text = "\n".join(message.text for message in of_run)
        shown = media_of(of_run) if role == "tool" else ()
        if role == "tool":
            answer = family.chat.observation_text(of_run, ended=True)
            ids += family.read_text(answer, [media[m] for m in shown])
        else:
            ids += _completion(family, text).token_ids.tolist()
        whose: Literal["assistant", "tool"] = "tool" if role == "tool" else "assistant"
        spans.append(Span(whose, len(ids) - before, text, shown))
    tokens = np.array(ids, dtype=np.int64)
    logprobs = np.zeros(len(tokens), dtype=np.float32)
    return Completion(tokens, logprobs, spans[-1].text, False, 0, tuple(spans))
