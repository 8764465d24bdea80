"""The chunked head against plain PyTorch, and that it never holds the whole of the logits."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.logprob_head import token_logprobs

N, H, V = 23, 16, 50


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, V, (N,), generator=generator)


def plain(hidden, weight, targets, temperature):
    logprobs = (hidden @ weight.T / temperature).log_softmax(-1)
    chosen = logprobs.gather(-1, targets[:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [1, 4 * V, 1000 * V], ids=["row", "four rows", "all"])
@pytest.mark.parametrize("use", ["logprobs", "entropy", "both"])
def test_values_and_gradients(temperature, chunk, use):
    hidden, weight, targets = inputs()
    got = token_logprobs(hidden, weight, targets, Distribution(temperature), chunk_elements=chunk)
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    expected = plain(*exact, targets, temperature)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=0)

    factors = {"logprobs": (1, 0), "entropy": (0, 1), "both": (1, 0.7)}[use]
    weights = torch.randn(2, N)

    def loss(outputs):
        parts = zip(factors, weights, outputs, strict=True)
        return sum((f * w * x).sum() for f, w, x in parts if f)

    grads = torch.autograd.grad(loss(got), (hidden, weight))
    wanted = torch.autograd.grad(loss(expected), exact)
    for a, b in zip(grads, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-5, rtol=0)


@pytest.mark.parametrize("of_entropy", [0.0, 0.7])
def test_backward_twice_through_kept_distribution(of_entropy):
    hidden, weight, targets = inputs()
    logprobs, entropy = token_logprobs(hidden, weight, targets)
    loss = logprobs.sum() + of_entropy * entropy.sum() if of_entropy else logprobs.sum()
    first = torch.autograd.grad(loss, hidden, retain_graph=True)[0]
    again = torch.autograd.grad(loss, hidden)[0]
    assert torch.equal(first, again)


@pytest.mark.parametrize("use", ["logprobs", "both"])
def test_gradients_in_half_precision_are_rounded_once(use):
    """To the nearest number of the plain head's gradient by the logits, which is in float32."""
    hidden, weight, targets = inputs(torch.bfloat16)
    factors = torch.randn(2, N) * torch.tensor([[1.0], [0.7 if use == "both" else 0.0]])
    got = token_logprobs(hidden, weight, targets, Distribution(0.6), chunk_elements=4 * V)
    loss = (factors[0] * got[0]).sum()
    if use == "both":
        loss = loss + (factors[1] * got[1]).sum()
    grads = torch.autograd.grad(loss, (hidden, weight))
    logits = (hidden.float() @ weight.float().T).detach().requires_grad_()
    expected = plain(logits, torch.eye(V), targets, 0.6)
    (by_logits,) = torch.autograd.grad(
        (factors[0] * expected[0] + factors[1] * expected[1]).sum(), logits
    )
    rounded = by_logits.bfloat16().double()
    wanted = (rounded @ weight.double(), rounded.T @ hidden.double())
    for a, b in zip(grads, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, atol=0.02, rtol=0.01)


def test_half_precision_inputs_give_float32_logprobs():
    hidden, weight, targets = inputs(torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, weight, targets, chunk_elements=4 * V)
    assert logprobs.dtype == entropy.dtype == torch.float32
    expected = plain(hidden.detach().float(), weight.detach().float(), targets, 1.0)
    torch.testing.assert_close(logprobs, expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, expected[1], atol=1e-5, rtol=0)
    grads = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    assert all(g.dtype == torch.bfloat16 for g in grads)


def test_torchs_fused_head_rounds_what_ours_does_not():
    """Why the head is not ``linear_cross_entropy``: its logits have the inputs' precision."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(32, 256, generator=generator).bfloat16()
    weight = (0.4 * torch.randn(4096, 256, generator=generator)).bfloat16()
    logits = hidden.double() @ weight.double().T
    targets = logits.topk(20).indices[:, 7]
    exact = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    fused = -torch.nn.functional.linear_cross_entropy(hidden, weight, targets, reduction="none")
    assert (fused.double() - exact).abs().max() > 0.02
    assert (token_logprobs(hidden, weight, targets)[0].double() - exact).abs().max() < 1e-4


def test_a_frozen_weight_gets_no_gradient():
    hidden, weight, targets = inputs()
    logprobs, _ = token_logprobs(hidden, weight.detach(), targets, chunk_elements=V)
    logprobs.sum().backward()
    assert hidden.grad is not None


class _Largest(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = out if isinstance(out, (tuple, list)) else [out]
        sizes = [t.numel() for t in tensors if isinstance(t, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def test_the_logits_never_exist_whole():
    hidden, targets = torch.randn(64, 4, requires_grad=True), torch.randint(0, 5000, (64,))
    weight = torch.randn(5000, 4, requires_grad=True)
    with _Largest() as largest:
        logprobs, entropy = token_logprobs(hidden, weight, targets, chunk_elements=4 * 5000)
        (logprobs + entropy).sum().backward()
    assert largest.elements == 4 * 5000  # 1/16 of [N, V]; the weight itself has as many
