"""Sequences cut over ranks against one process; the ranks are threads of this one.

``tests/trainer/distributed/test_context.py`` has processes, and models on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
import torch
import torch.distributed as dist

from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.context_packing import Cut, frame_parts, pack_local
from mmr1.trainer.forward.packing import pack
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import GroupInput, TokenScores
from tests.trainer.tiny_groups import family, group, image, new_model, video, with_support

CPU = torch.device("cpu")
PLACEHOLDERS = (family().image_id, family().video_id)


UNCUT, CUT = Distribution(0.7), Distribution(0.7, top_k=9)
GROUPS: dict[str, Callable[[], list[GroupInput]]] = {
    "text": lambda: [group([], 9, [3, 7, 1, 12], 0), group([], 5, [6], 1)],
    "image": lambda: [
        group([image(56, 84, 0)], 11, [5, 9], 1),
        group([image(84, 56, 1)], 3, [4], 2),
    ],
    "one image in two prompts": lambda: [
        group([image(56, 84, 0)], 6, [4, 2], 2),
        group([image(28, 28, 9), image(56, 84, 0)], 5, [7, 3], 3),
    ],
    "a video longer than the ranks": lambda: [group([video(10, 56, 84, 4)], 7, [9, 3], 6)],
    "fewer tokens than chunks": lambda: [group([], 1, [1], 7)],
}


def context_of(rank: int, size: int) -> Context:
    return Context(rank, size, dist.group.WORLD)


def learnt(
    groups: list[GroupInput],
    context: Context | None,
    distribution: Distribution = UNCUT,
) -> tuple[TokenScores, dict[str, Any]]:
    """Scores, and the gradients of a sum in which every token weighs otherwise."""
    model = new_model()
    scores = completion_scores(model, groups, distribution, context=context)
    weights = torch.linspace(-1.0, 2.0, scores.logprobs.numel()).view(scores.logprobs.shape)
    (scores.logprobs * weights + scores.entropy * weights.flip(0)).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return scores, gradients


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("distribution", [UNCUT, CUT], ids=["uncut", "cut"])
@pytest.mark.parametrize("case", GROUPS)
def test_ranks_together_learn_what_one_process_learns(on_threads, case, size, distribution):
    """Each has all scores; their gradients add up."""
    groups = with_support(GROUPS[case](), size)
    expected, wanted = learnt(groups, None, distribution)
    found = on_threads(size, lambda rank: learnt(groups, context_of(rank, size), distribution))
    for scores, _ in found:
        torch.testing.assert_close(scores.logprobs, expected.logprobs, atol=1e-5, rtol=0)
        torch.testing.assert_close(scores.entropy, expected.entropy, atol=1e-5, rtol=0)
    for name, gradient in wanted.items():
        total = sum(gradients[name] for _, gradients in found if name in gradients)
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(total, gradient, atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("read", ["before", "at"])
@pytest.mark.parametrize("case", GROUPS)
def test_parts_of_ranks_are_the_whole_sequence(on_threads, case, read):
    """Every token, position and target is on one rank, and read where the whole one reads it."""
    groups, size = GROUPS[case](), 3
    whole = pack(groups, PLACEHOLDERS, CPU, read)
    parts = on_threads(
        size, lambda rank: pack_local(groups, PLACEHOLDERS, CPU, read, context_of(rank, size))
    )
    cut = Cut(len(whole.ids), size)
    ids = torch.full((cut.padded,), -1)
    positions = torch.full((len(whole.positions), cut.padded), -1)
    read_at: dict[tuple[int, ...], tuple[int, int]] = {}
    for rank, part in enumerate(parts):
        tokens = cut.tokens_of(rank)
        ids[tokens], positions[:, tokens] = part.ids, part.positions
        for place, row, target in zip(part.padded.places.T, part.rows, part.targets, strict=True):
            assert tuple(place.tolist()) not in read_at
            read_at[tuple(place.tolist())] = (int(tokens[row]), int(target))
        assert (
            (part.ids[part.feature_slots].unsqueeze(1) == torch.tensor(PLACEHOLDERS)).any(1).all()
        )
    assert ids.tolist() == [*whole.ids.tolist(), *[0] * (cut.padded - cut.tokens)]
    assert torch.equal(positions[:, : cut.tokens], whole.positions)
    assert not positions[:, cut.tokens :].any()
    expected = zip(whole.padded.places.T.tolist(), whole.rows, whole.targets, strict=True)
    assert read_at == {tuple(place): (int(row), int(t)) for place, row, t in expected}
    slots = sum(len(part.feature_slots) for part in parts)
    assert slots == len(whole.feature_slots) == sum(len(part.feature_rows) for part in parts)


@pytest.mark.parametrize(("tokens", "size"), [(1, 2), (7, 2), (24, 3), (25, 3)])
def test_each_rank_has_an_early_and_a_late_chunk(tokens, size):
    """The first and the last, the second and the last but one: equal work of a causal sequence."""
    cut = Cut(tokens, size)
    assert tokens <= cut.padded < tokens + 2 * size
    chunks = torch.arange(cut.padded).view(2 * size, -1)
    for rank in range(size):
        own = torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])
        assert torch.equal(cut.tokens_of(rank), own)
    order = torch.cat([cut.tokens_of(rank) for rank in range(size)])
    assert torch.equal(order[cut.gathered()], torch.arange(cut.padded))


@pytest.mark.parametrize(("frames", "ranks"), [(2, 3), (4, 3), (14, 4)])
def test_frames_of_a_video_are_spread_over_ranks(frames, ranks):
    """In order, each once, as evenly as they go, from a rank that the digest names."""
    medium = video(frames, 56, 84, 4)
    parts = frame_parts(medium, ranks)
    torch.testing.assert_close(torch.cat([part.patches for _, part in parts]), medium.patches)
    counts = [part.grid[0] for _, part in parts]
    assert max(counts) - min(counts) <= 1
    assert len(parts) == min(ranks, medium.grid[0])
    encoders = [rank for rank, _ in parts]
    assert len(set(encoders)) == len(parts)
    first = crc32(medium.digest.encode()) % ranks
    if len(parts) == ranks:
        assert encoders == [(first + index) % ranks for index in range(ranks)]
