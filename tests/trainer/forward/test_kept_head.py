"""Log-probs, entropies and divergences over the ids that the sampler kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmr1.rollout.distribution import Distribution, support_of
from mmr1.trainer.forward.logprob_head import Distributions, token_kl, token_logprobs

N, V, H = 13, 60, 8


def random_support(seed, targets, whole=0.2):
    """Kept ids of each token, its own among them; none for some tokens."""
    rng = np.random.default_rng(seed)
    rows = []
    for target in targets.tolist():
        size = int(rng.integers(1, 12))
        others = rng.choice([i for i in range(V) if i != target], size - 1, replace=False)
        ids = rng.permutation([target, *others]).astype(np.int32)
        rows.append(ids[:0] if rng.random() < whole else ids)
    return support_of(rows), rows


def logits_of(hidden, weight, rows, temperature, forbidden):
    """All logits at once; ids that were not kept, or are forbidden, at minus infinity."""
    allowed = torch.zeros(len(rows), V, dtype=torch.bool)
    for place, ids in enumerate(rows):
        if len(ids):
            allowed[place, torch.from_numpy(ids).long()] = True
        else:
            allowed[place] = True
            allowed[place, list(forbidden)] = False
    return (hidden @ weight.T / temperature).masked_fill(~allowed, -torch.inf)


def entropy_of(log_p):
    finite = torch.where(log_p.isfinite(), log_p, 0.0)
    return -(log_p.exp() * finite).sum(-1)


@pytest.mark.parametrize("seed", range(50))
def test_gradient_equals_autograd_over_the_kept_ids(seed):
    torch.manual_seed(seed)
    temperature, forbidden = (1.0, ()) if seed % 2 else (0.7, (0, 5, 59))
    allowed = [i for i in range(V) if i not in forbidden]
    targets = torch.tensor(allowed)[torch.randint(len(allowed), (N,))]
    support, rows = random_support(seed, targets, whole=(seed % 3) / 4)
    ours = [torch.randn(N, H, requires_grad=True), torch.randn(V, H, requires_grad=True)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    chunk = [1, 200, None][seed % 3]
    got = token_logprobs(
        *ours, targets, Distribution(temperature, top_k=V, forbidden=forbidden), support, chunk
    )
    log_p = logits_of(*theirs, rows, temperature, forbidden).log_softmax(-1)
    wanted = log_p.gather(1, targets[:, None])[:, 0], entropy_of(log_p)
    for actual, expected in zip(got, wanted, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    each = torch.randn(2, N)
    (torch.stack(got) * each).sum().backward()
    (torch.stack(wanted) * each).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-4)


def test_one_kept_id_has_no_log_prob_and_no_gradient():
    hidden, weight = torch.randn(2, H, requires_grad=True), torch.randn(V, H, requires_grad=True)
    support = support_of([np.array([4], np.int32), np.array([7], np.int32)])
    logprobs, entropy = token_logprobs(hidden, weight, torch.tensor([4, 7]), support=support)
    (logprobs.sum() + entropy.sum()).backward()
    assert not logprobs.any()
    assert not entropy.any()
    assert not hidden.grad.any()
    assert not weight.grad.any()


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("chunk", [1, None])
def test_divergence_is_over_the_kept_ids(beta, chunk):
    torch.manual_seed(1)
    targets = torch.randint(V, (N,))
    support, rows = random_support(1, targets)
    ours = [torch.randn(N, H, requires_grad=True), torch.randn(V, H, requires_grad=True)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    reference = torch.randn(N, H), torch.randn(V + 4, H)
    distribution = Distribution(0.9, top_k=V)
    got = token_kl(
        Distributions(*ours), Distributions(*reference), distribution, support, chunk, beta
    )
    wanted = []
    own = (
        logits_of(*theirs, rows, 0.9, ()),
        logits_of(reference[0], reference[1][:V], rows, 0.9, ()),
    )
    for a, b in zip(*own, strict=True):
        log_p, log_q = a[a.isfinite()].log_softmax(-1), b[b.isfinite()].log_softmax(-1)
        p, q = log_p.exp(), log_q.exp()
        m = beta * q + (1 - beta) * p
        both = beta * q * (q / m).log() + (1 - beta) * p * (p / m).log()
        one = p * (log_p - log_q) if beta else q * (log_q - log_p)
        wanted.append((one if beta in (0, 1) else both).sum())
    torch.testing.assert_close(got, torch.stack(wanted), atol=1e-5, rtol=1e-4)
    got.sum().backward()
    torch.stack(wanted).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-4)


def test_head_multiplies_with_kept_rows_alone():
    """Its products with 20 kept ids are a hundredth of those with 2,000 ids."""
    from torch.utils.flop_counter import FlopCounterMode

    hidden, weight = torch.randn(64, 16), torch.randn(2000, 16)
    targets = torch.randint(20, (64,))
    support = support_of([np.arange(20, dtype=np.int32)] * 64)
    counted = []
    for kept in (None, support):
        with FlopCounterMode(display=False) as counter:
            token_logprobs(hidden, weight, targets, support=kept)
        counted.append(counter.get_total_flops())
    assert counted[1] * 100 <= counted[0]


def test_half_precision_is_computed_in_float32():
    torch.manual_seed(0)
    hidden, weight = torch.randn(N, H).bfloat16(), torch.randn(V, H).bfloat16()
    targets = torch.randint(V, (N,))
    support, rows = random_support(0, targets, whole=0)
    got, _ = token_logprobs(hidden, weight, targets, support=support)
    log_p = logits_of(hidden.double(), weight.double(), rows, 1.0, ()).log_softmax(-1)
    wanted = log_p.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=0)
