"""A measured optimizer step: the same bits as a plain one, and the norms of what it did."""

from __future__ import annotations

import copy

import pytest
import torch

from mmr1.config import OptimizerConfig
from mmr1.trainer.models.optimizer import Optimizer


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(5, 7), torch.nn.Linear(7, 3)
        self.unused = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def backward(net: Net, number: int) -> None:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(number))
    net(x.to(next(net.parameters()).dtype)).float().square().sum().backward()


SETTINGS = {
    "float32": ({}, torch.float32),
    "decay": ({"weight_decay": 0.1, "max_grad_norm": 0.5}, torch.float32),
    "two_rates": ({"lr_of_parts": {"second": 1e-4}}, torch.float32),
    "bfloat16": ({}, torch.bfloat16),
    "bfloat16_moments": ({"state_dtype": "bfloat16"}, torch.bfloat16),
    "offload": ({"offload": True}, torch.bfloat16),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_measured_step_gives_bits_of_plain_step(name: str) -> None:
    keys, dtype = SETTINGS[name]
    plain = Net().to(dtype)
    measured = copy.deepcopy(plain)
    config = OptimizerConfig(lr=1e-2, **keys)
    optimizers = Optimizer(plain, config, 10), Optimizer(measured, config, 10)
    for number in range(3):
        backward(plain, number)
        backward(measured, number)
        stats, (measured_stats, _) = optimizers[0].step(), optimizers[1].measured_step()
        assert stats == measured_stats
        for a, b in zip(plain.parameters(), measured.parameters(), strict=True):
            assert torch.equal(a, b)
    first, second = optimizers[0].tensors(), optimizers[1].tensors()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_norms_are_of_gradient_and_change() -> None:
    net = Net()
    optimizer = Optimizer(net, OptimizerConfig(lr=1e-2, max_grad_norm=0.1), 10)
    backward(net, 0)
    gradients = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    stats, norms = optimizer.measured_step()
    total = 0.0
    for place, name in enumerate(optimizer.names):
        change = net.get_parameter(name).detach() - before[name]
        expected = gradients[name].norm() if name in gradients else torch.tensor(0.0)
        assert norms.gradients[place] == pytest.approx(float(expected), rel=1e-6)
        assert norms.changes[place] == pytest.approx(float(change.norm()), rel=1e-6)
        total += float(expected) ** 2
    assert stats["grad_norm"] == pytest.approx(total**0.5, rel=1e-6)
    assert norms.changes[optimizer.names.index("unused")] == 0
