"""Heads that are moved apart, and all their logits."""

from __future__ import annotations

import copy

import torch


def naive(hidden, weight, ref_hidden, ref_weight, temperature=1.0, forbidden=(), beta=1.0):
    """All logits at once, by autograd; GKD's equations as they stand in the paper."""
    kept = [i for i in range(len(weight)) if i not in forbidden]
    log_p = (hidden @ weight[kept].T / temperature).log_softmax(-1)
    log_q = (ref_hidden @ ref_weight[kept].T / temperature).log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    if beta in (0, 1):
        return (p * (log_p - log_q) if beta else q * (log_q - log_p)).sum(-1)
    m = beta * q + (1 - beta) * p
    return (beta * q * (q / m).log() + (1 - beta) * p * (p / m).log()).sum(-1)


def moved(model):
    """A model whose distributions are others."""
    torch.manual_seed(0)
    other = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        other.lm_head.weight += 0.05 * torch.randn_like(other.lm_head.weight)
    return other
