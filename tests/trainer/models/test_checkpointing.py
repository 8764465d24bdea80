"""Activations that are computed again: of which layers, and that nothing else changes."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial

import pytest
import torch

from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import checkpoint_activations
from mmr1.vision.families.loading import model_parts


def count(runs: Counter[int], number: int, *_: object) -> None:
    runs[number] += 1


@pytest.mark.parametrize("layers", [1, True])
def test_checkpointed_layers_run_twice_and_gradients_are_equal(parts, layers):
    family, model, media, scored = parts
    inputs = ModelInputs(family, media).of([s.group for s in scored])
    gradients = []
    for checkpointed in (False, layers):
        own = copy.deepcopy(model).train()
        if checkpointed:
            checkpoint_activations(own, checkpointed)
        runs: Counter[int] = Counter()
        for number, layer in enumerate(model_parts(own).layers):
            layer.self_attn.register_forward_hook(partial(count, runs, number))
        completion_scores(own, inputs).logprobs.sum().backward()
        gradients.append({n: p.grad for n, p in own.named_parameters() if p.grad is not None})
        again = len(runs) if checkpointed is True else int(checkpointed)
        assert [runs[n] for n in range(len(runs))] == [2] * again + [1] * (len(runs) - again)
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_more_layers_than_the_model_has_are_refused(parts):
    with pytest.raises(ValueError, match=r"gradient_checkpointing=3: .* has 2 layers"):
        checkpoint_activations(copy.deepcopy(parts[1]), 3)
