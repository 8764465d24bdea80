"""The next-token draw: distribution, truncation, log-probs."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.config import SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import next_tokens
from mmr1.rollout.protocol import request_seed


def draws(logits: list[float], count: int = 20_000, **options: float) -> torch.Tensor:
    """Frequencies of the tokens among ``count`` draws."""
    rows = torch.tensor(logits).repeat(count, 1)
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(0))
    tokens = next_tokens(rows, uniforms, Distribution.of(SamplingConfig(**options))).tokens
    return torch.bincount(tokens, minlength=len(logits)) / count


def test_frequencies_are_the_softmax():
    expected = (torch.tensor([1.0, 0.0, 2.0]) / 0.7).softmax(-1)
    actual = draws([1.0, 0.0, 2.0], temperature=0.7)
    torch.testing.assert_close(actual, expected, atol=0.01, rtol=0)


def test_top_k_by_hand():
    # Of 3, 2, 1, 0 the first two are kept: odds e to 1.
    actual = draws([3.0, 2.0, 1.0, 0.0], top_k=2)
    torch.testing.assert_close(actual, torch.tensor([0.731, 0.269, 0, 0]), atol=0.01, rtol=0)


def test_top_p_by_hand():
    # Probabilities 0.5, 0.3, 0.2: the mass before the third is 0.8, so 0.75 cuts it off.
    actual = draws(torch.tensor([0.5, 0.3, 0.2]).log().tolist(), top_p=0.75)
    torch.testing.assert_close(actual, torch.tensor([0.625, 0.375, 0.0]), atol=0.01, rtol=0)


def test_min_p_by_hand():
    # 0.1 is less than a quarter of 0.5.
    actual = draws(torch.tensor([0.5, 0.4, 0.1]).log().tolist(), min_p=0.25)
    torch.testing.assert_close(actual, torch.tensor([0.556, 0.444, 0.0]), atol=0.01, rtol=0)


def test_greedy_keeps_the_most_probable_id_alone():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    drawn = next_tokens(logits, torch.rand(1), Distribution(temperature=0))
    assert (drawn.tokens.tolist(), drawn.logprobs.tolist()) == ([1], [0.0])
    assert [ids.tolist() for ids in drawn.kept] == [[1]]


@settings(deadline=None)
@given(
    st.integers(0, 1000),
    st.floats(0.1, 3),
    st.floats(0.05, 1),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.5, 1 - 2**-24]),
)
def test_draw_follows_the_cut_distribution(seed, temperature, top_p, top_k, u):
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(seed)) * 3
    config = SamplingConfig(temperature=temperature, top_p=top_p, top_k=top_k)
    distribution = Distribution.of(config, forbidden=(3,))
    drawn = next_tokens(logits.clone(), torch.tensor([u]), distribution)
    token, logprob = drawn.tokens, drawn.logprobs

    logits[:, 3] = -torch.inf
    odds = (logits[0].double() / temperature).softmax(-1)
    order = odds.argsort(descending=True)
    kept = order[: top_k or None]
    odds = torch.zeros_like(odds).index_copy(0, kept, odds[kept] / odds[kept].sum())
    before, nucleus = 0.0, []
    for index in order.tolist():  # a slow plain reading of nucleus sampling
        if before < top_p - 1e-6 or not nucleus:
            nucleus.append(index)
        before += float(odds[index])
    expected = odds[token] / odds[nucleus].sum()
    assert token.item() != 3
    assert distribution.keeps_all == (drawn.kept is None)
    if token.item() in nucleus:  # at the very edge of top-p, rounding decides
        torch.testing.assert_close(logprob.double(), expected.log(), atol=2e-4, rtol=0)
    edge = min(abs(float(odds[order[:n]].sum()) - top_p) for n in range(1, 13))
    if drawn.kept is not None and edge > 1e-5:
        able = [i for i in nucleus if odds[i] > 0]
        assert drawn.kept[0].tolist() == sorted(able)


def test_seeds_differ_by_run_step_and_prompt():
    seeds = {request_seed(r, s, p) for r in range(5) for s in range(5) for p in "abcde"}
    assert len(seeds) == 125
    assert all(0 <= seed < 2**48 for seed in seeds)
