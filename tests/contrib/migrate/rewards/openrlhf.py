"""As OpenRLHF's functions: a tensor of rewards."""

import torch


def reward_func(queries, prompts, labels, **kwargs):
    right = [
        query.removeprefix(prompt) == label
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    return torch.tensor(right, dtype=torch.float32)
