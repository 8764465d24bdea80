"""One distribution with every reader: what it keeps, and how its support is cut and joined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmr1.config import SamplingConfig
from mmr1.rollout.distribution import (
    SUPPORT_LIMIT,
    Distribution,
    join_supports,
    kept_ids,
    select_support,
    support_of,
)

CUTS = [{"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 3}, {"top_k": 5, "top_p": 0.7, "min_p": 0.02}]


@pytest.mark.parametrize("cut", [{"top_p": 0.95}, {"min_p": 0.05}])
def test_cut_without_top_k_gets_one(cut):
    assert Distribution.of(SamplingConfig(**cut)).top_k == SUPPORT_LIMIT
    assert Distribution.of(SamplingConfig(top_k=7, **cut)).top_k == 7


def test_uncut_distribution_keeps_all_but_the_forbidden_ids():
    distribution = Distribution.of(SamplingConfig(temperature=0.7), (1, 4))
    assert distribution.keeps_all
    log_probs = distribution.log_probs(torch.randn(3, 6))
    assert [ids.tolist() for ids in kept_ids(log_probs)] == [[0, 2, 3, 5]] * 3
    assert distribution.of_model().forbidden != ()
    assert distribution.of_model().temperature == 1


@pytest.mark.parametrize("cut", CUTS)
def test_kept_ids_are_the_most_probable_ones(cut):
    """Their log-probs are the model's over what is kept, at the temperature."""
    torch.manual_seed(0)
    logits = torch.randn(40, 30) * 3
    distribution = Distribution.of(SamplingConfig(temperature=0.8, **cut), (2,))
    log_probs = distribution.log_probs(logits.clone())
    scaled = (logits / 0.8).index_fill(1, torch.tensor([2]), -torch.inf)
    for row, own, ids in zip(scaled, log_probs, kept_ids(log_probs), strict=True):
        kept = torch.from_numpy(ids).long()
        assert set(ids) == set(row.argsort(descending=True)[: len(ids)].tolist())
        torch.testing.assert_close(own[kept], row[kept].log_softmax(-1))
    assert len({len(ids) for ids in kept_ids(log_probs)}) > 1 or "top_k" in cut


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(), SamplingConfig(temperature=0), SamplingConfig(top_p=0.9)]
)
def test_bounded_distribution_has_temperature_and_top_k(sampling):
    distribution = Distribution.of(sampling, (3,)).bounded()
    assert distribution.temperature > 0
    assert 0 < distribution.top_k <= SUPPORT_LIMIT
    assert distribution.forbidden == (3,)
    assert (distribution.top_k == 1) == (sampling.temperature == 0)


ROWS = st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=6)


@given(ROWS, ROWS, st.integers(1, 3))
def test_supports_join_and_cut_row_by_row(first, second, uncut):
    def support(rows):
        return support_of([np.array(row, np.int32) for row in rows])

    joined = join_supports([support(first), uncut, support(second)])
    rows = [*first, *[[]] * uncut, *second]
    assert joined is not None
    assert np.split(joined.ids, joined.sizes.cumsum()[:-1])[0].tolist() == first[0]
    mask = np.arange(len(rows)) % 2 == 1
    cut = select_support(joined, mask)
    expected = support([row for row, taken in zip(rows, mask, strict=True) if taken])
    assert cut.ids.tolist() == expected.ids.tolist()
    assert cut.sizes.tolist() == expected.sizes.tolist()


def test_sequences_without_support_join_to_none():
    assert join_supports([3, 1]) is None
