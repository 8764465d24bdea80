"""Conversations with pictures, as groups."""

from __future__ import annotations

import numpy as np

from mmr1.types import Completion, Message, RolloutGroup, Span, TextPart
from mmr1.vision.prepare import MediaCache
from tests.vision.families.general_family import IMAGE, SQUARE, General


def conversations(general: General, seed: int, shown, turns) -> RolloutGroup:
    """Random turns, of which all but the last are answered by a text and these pictures."""
    rng, family = np.random.default_rng(seed), general.family
    media = MediaCache(family.prepare_media)
    prompt = general.group(shown, seed).prompt
    completions = []
    for pictures in turns:
        ids, spans = [], []
        for index in range(len(pictures) + 1):
            said = rng.integers(60, 500, int(rng.integers(2, 6))).tolist()
            ids += said
            spans.append(Span("assistant", len(said), ""))
            if index < len(pictures):
                parts = (TextPart("Look:"), *pictures[index], TextPart(f"number {index}"))
                text = family.chat.observation_text([Message("tool", parts)], ended=False)
                answer = family.read_text(text, [media[m] for m in pictures[index]])
                ids += answer
                spans.append(Span("tool", len(answer), "", tuple(pictures[index])))
        row = np.array(ids)
        zeros = np.zeros(len(row), np.float32)
        completions.append(Completion(row, zeros, "", False, 0, tuple(spans)))
    return RolloutGroup(prompt, tuple(completions))


def groups_of(general: General) -> list[RolloutGroup]:
    """Pictures in answers alone, beside one in the prompt, of other sizes, several; one row."""
    return [
        conversations(general, 0, (), [[(IMAGE,)], [(), (SQUARE,)], []]),
        conversations(general, 1, (IMAGE,), [[(SQUARE,)], [(IMAGE, SQUARE)]]),
        conversations(general, 2, (SQUARE,), [[(), (IMAGE,)]]),
    ]
