"""Attention over ragged blocks against a dense mask, gradients by autograd."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1 import attention
from mmr1.attention import (
    Blocks,
    Padding,
    attend,
    attend_backward,
    block_backward,
    block_forward,
    dense_backward,
    dense_forward,
)
from mmr1.trainer.forward.packing import packed_attention
from tests.attention.layouts import CPU, EXACT, SCALE, rows, shared_layout


def dense(query, key, value, allowed):
    """Attention with a ``[Tq, Tk]`` mask; rows that may see nothing are 0."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * SCALE
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1).nan_to_num(0)
    return torch.einsum("hqk,khd->qhd", weights, value)


def allowed_pairs(blocks):
    parts = []
    for q, k in zip(blocks.q_lengths, blocks.k_lengths, strict=True):
        ones = torch.ones(q, k, dtype=torch.bool)
        parts.append(ones.tril() if blocks.causal else ones)
    return torch.block_diag(*parts).bool()


def grad_like(out):
    return torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(3))


def check(blocks):
    query = rows(sum(blocks.q_lengths), 4, 0)
    key, value = rows(sum(blocks.k_lengths), 2, 1), rows(sum(blocks.k_lengths), 2, 2)
    expected = dense(query, key, value, allowed_pairs(blocks))
    out, lse = attend(query, key, value, blocks, SCALE)
    torch.testing.assert_close(out, expected, **EXACT)

    grad = grad_like(out)
    expected_grads = torch.autograd.grad(expected, (query, key, value), grad)
    grads = attend_backward(grad, query, key, value, out, lse, blocks, SCALE)
    for actual, exact in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(actual, exact, **EXACT)


@pytest.mark.parametrize("padding_entries", [0, 1 << 16], ids=["many buckets", "one bucket"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_attend_equals_a_dense_mask(padding_entries, data):
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    causal = data.draw(st.booleans())
    queries = lengths
    if not causal:  # a prefix may have no suffixes, but there is at least one query
        queries = data.draw(st.tuples(*[st.integers(0, 40) for _ in lengths]))
        queries = [queries[0] + 1, *queries[1:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "PADDING_ENTRIES", padding_entries)
        check(Blocks(tuple(queries), tuple(lengths), causal, CPU))


def test_blocks_of_one_size_are_not_moved():
    padding = Padding.of((5, 5, 5), [[0, 1, 2]], CPU)
    assert padding.source is None
    assert padding.shapes == [(3, 5)]
    x = torch.randn(15, 2, 4)
    assert padding.pad(x)[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_padding_stays_below_a_quarter_beside_the_cost_of_a_call():
    lengths = (2000, 1990, 1000, 900, 30, 20, 10)
    blocks = Blocks(lengths, lengths, causal=True, device=CPU)
    assert blocks.buckets == [[0, 1], [2, 3], [4, 5, 6]]


@pytest.mark.parametrize("causal", [True, False])
def test_dense_blocks_equal_the_kernel(causal):
    torch.manual_seed(0)
    shape = (2, 3, 7, 32)
    query, key, value, grad = (torch.randn(shape) for _ in range(4))
    mask = None
    if not causal:
        mask = torch.zeros(2, 1, 1, 7)
        mask[1, ..., 5:] = float("-inf")
    out, lse = block_forward(query, key, value, mask, causal, SCALE)
    dense_out, dense_lse = dense_forward(query, key, value, mask, causal, SCALE)
    torch.testing.assert_close(dense_out, out, atol=2e-6, rtol=0)
    torch.testing.assert_close(dense_lse, lse, atol=2e-6, rtol=0)
    args = (grad, query, key, value, mask, out, lse, causal, SCALE)
    for a, b in zip(dense_backward(*args), block_backward(*args), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "groups",
    [
        [(9, [3, 5, 1])],
        [(9, [3, 3]), (9, [3, 3])],
        [(4, []), (17, [2, 30]), (8, [6])],
        [(12, []), (3, [])],
    ],
    ids=["one group", "even", "ragged", "no suffixes"],
)
def test_shared_prefix_attention_equals_a_dense_mask(groups):
    layout, allowed = shared_layout(groups)
    query, key, value = rows(len(allowed), 4, 0), rows(len(allowed), 2, 1), rows(len(allowed), 2, 2)
    expected = dense(query, key, value, allowed)
    heads_first = [x.transpose(0, 1)[None] for x in (query, key, value)]
    out, _ = packed_attention(torch.nn.Identity(), *heads_first, None, scaling=SCALE, layout=layout)
    torch.testing.assert_close(out[0], expected, **EXACT)
    grad = grad_like(expected)
    expected_grads = torch.autograd.grad(expected, (query, key, value), grad)
    grads = torch.autograd.grad(out[0], (query, key, value), grad)
    for actual, exact in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(actual, exact, **EXACT)


def test_bf16_is_close_to_float32():
    layout, allowed = shared_layout([(17, [5, 9]), (30, [4])])
    query, key, value = rows(len(allowed), 4, 0), rows(len(allowed), 2, 1), rows(len(allowed), 2, 2)
    halves = [x.detach().bfloat16() for x in (query, key, value)]
    out, _ = packed_attention(
        torch.nn.Identity(),
        *[x.transpose(0, 1)[None] for x in halves],
        None,
        scaling=SCALE,
        layout=layout,
    )
    expected = dense(*[x.float() for x in halves], allowed)
    torch.testing.assert_close(out[0].float(), expected, atol=2e-2, rtol=0)


def test_the_kernel_is_never_told_that_blocks_have_a_single_query(monkeypatch):
    """With max_seqlen_q 1 it takes every block to have exactly one query; some have none."""
    lengths = []

    def kernel(query, key, value, q_offsets, k_offsets, longest_q, longest_k, *args, **options):
        lengths.append((longest_q, longest_k))
        return torch.zeros_like(query), torch.zeros(query.shape[1], len(query))

    monkeypatch.setattr(attention, "has_varlen_kernel", lambda query: True)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", kernel)
    blocks = Blocks((1, 0, 1), (3, 4, 2), causal=False, device=torch.device("cpu"))
    query, key = torch.zeros(2, 4, 8), torch.zeros(9, 2, 8)
    out, lse = attend(query, key, key, blocks, 1.0)
    assert (out.shape, lse.shape) == (query.shape, (2, 4))
    assert lengths == [(2, 4)]
