"""Every part: its source, its settings and its example."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmr1.algorithms import AdvantageInputs, LossInputs, advantage, loss
from mmr1.section import shapes

PARTS = [
    pytest.param(kind, part, id=f"{part.key}={part.name}")
    for kind in (loss, advantage)
    for part in kind.parts.values()
]


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_part_names_source_and_describes_keys(kind, part):
    assert part.papers
    nested = shapes(part.section)
    fields = part.section.model_fields.items()
    assert all(f.description for key, f in fields if key != "type" and key not in nested)


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_part_gives_numbers_of_its_example(kind, part):
    """Each completion of an advantage's example has one token, and a loss's one completion."""
    example = {k: v for k, v in part.example.items() if k != "settings"}
    built = kind.build(part.section(**part.example.get("settings", {})))
    if kind is advantage:
        wanted = example.pop("advantages")
        made = built.of_tokens(advantage_inputs(example.pop("rewards"), example))[:, 0]
    else:
        wanted = example.pop("loss")
        made = built.of_tokens(loss_inputs(**example))[0]
    assert made.tolist() == pytest.approx(wanted, abs=1e-4)


def advantage_inputs(rewards: list[float], others: dict[str, Any]) -> AdvantageInputs:
    values = torch.tensor([rewards], dtype=torch.float32)
    mask = torch.ones(values.numel(), 1, dtype=torch.bool)
    given = {"kl_penalty": torch.zeros(mask.shape)}
    given |= {key: torch.tensor(value) for key, value in others.items()}
    return AdvantageInputs(values, values == values, mask, **given)


def loss_inputs(log_ratios: list[float], advantage: float, **others: Any) -> LossInputs:
    new = torch.tensor([log_ratios], requires_grad=True)
    ones = torch.ones(new.shape)
    given = {"old_logprobs": 0 * ones} | {k: torch.tensor(v) for k, v in others.items()}
    return LossInputs(new, advantages=advantage * ones, entropy=0 * ones, mask=ones.bool(), **given)
