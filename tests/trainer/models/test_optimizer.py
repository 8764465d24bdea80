"""AdamW with half-precision weights, and the learning-rate schedules."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Trainer

from mmr1.config import OptimizerConfig
from mmr1.trainer.models import optimizer as optimizer_module
from mmr1.trainer.models.optimizer import (
    Optimizer,
    _shard_index,
    has_fused_adamw,
    schedule_factor,
    stochastic_round,
)


def steps_of_one(dtype: torch.dtype, count: int) -> torch.Tensor:
    """A weight of 1 after ``count`` steps of about 1e-4 each, downwards."""
    layer = torch.nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    optimizer = Optimizer(
        layer, OptimizerConfig(lr=0.0001, scheduler={"type": "constant", "warmup_steps": 0}), count
    )
    for _ in range(count):
        layer.weight.sum().backward()
        optimizer.step()
    return layer.weight.detach().float().squeeze()


@pytest.mark.parametrize("decays", [True, False])
def test_weight_decay_reaches_norms_and_biases_only_where_asked(decays):
    """As transformers.Trainer's groups, with a gradient of 0: what changes is the decay."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    torch.nn.init.ones_(model[0].bias)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = OptimizerConfig(lr=0.1, weight_decay=0.5, decay_norms_and_biases=decays)
    for parameter in model.parameters():
        parameter.grad = None
    optimizer = Optimizer(model, config.changed({"scheduler.warmup_steps": 0}), 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    decayed = Trainer.get_decay_parameter_names(None, model)
    for name, parameter in model.named_parameters():
        factor = 0.95 if decays or name in decayed else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


def test_small_steps_are_not_rounded_away_in_bfloat16():
    # Near 1 bfloat16 has steps of 2**-8: a single update of 1e-4 would leave the weight at 1.
    whole = steps_of_one(torch.float32, 200)
    half = steps_of_one(torch.bfloat16, 200)
    assert float(whole) == pytest.approx(0.98, abs=1e-3)
    assert float(half) == pytest.approx(float(whole), abs=2**-8)


def test_clipping_is_by_the_norm_over_all_parameters():
    layers = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    optimizer = Optimizer(layers, OptimizerConfig(max_grad_norm=1.0), 10)
    for parameter in layers.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    caught: list[torch.Tensor] = []
    optimizer.adamw.step = lambda: caught.extend(p.grad.clone() for p in layers.parameters())
    assert optimizer.step()["grad_norm"] == pytest.approx(4.0)  # sqrt(4 * 2**2)
    assert [float(g) for g in caught] == pytest.approx([0.5] * 4, abs=1e-5)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_schedules_warm_up_and_never_rise_again(schedule):
    config = OptimizerConfig(scheduler={"type": schedule, "warmup_steps": 5})
    factors = [schedule_factor(s, 50, config) for s in range(50)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(a >= b > 0 for a, b in pairwise(factors[5:]))
    assert factors[-1] == 1 if schedule == "constant" else factors[-1] < 0.05


def trained(steps: int, dtype: torch.dtype = torch.float32, **config: object) -> list[torch.Tensor]:
    """Weights of a small network after some steps on random data."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model = model.to(dtype)
    optimizer = Optimizer(
        model,
        OptimizerConfig(lr=0.01, scheduler={"type": "constant", "warmup_steps": 0}, **config),
        steps,
    )
    data = torch.Generator().manual_seed(1)  # rounding at random draws from torch's own
    for _ in range(steps):
        x = torch.randn(16, 8, generator=data).to(dtype)
        (model(x)[:, 0] - x.sum(1)).square().mean().backward()
        optimizer.step()
    return [p.detach().float() for p in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloading_changes_nothing_of_the_result(dtype):
    for here, there in zip(trained(20, dtype), trained(20, dtype, offload=True), strict=True):
        assert torch.equal(here, there)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_offloaded_parameter_is_not_the_one_that_is_stepped(dtype):
    """All that AdamW works on lies in main memory: weights, gradients and moments."""
    layer = torch.nn.Linear(2, 2).to(dtype)
    optimizer = Optimizer(
        layer, OptimizerConfig(offload=True, lr=0.1, scheduler={"warmup_steps": 0}), 1
    )
    before = layer.weight.detach().clone()
    layer.weight.sum().backward()
    stepped: list[torch.Tensor] = []
    step = optimizer.adamw.step

    def watched_step() -> None:
        assert torch.equal(layer.weight, before)
        step()
        stepped.extend(p for group in optimizer.adamw.param_groups for p in group["params"])
        assert torch.equal(layer.weight, before), "the parameter is written after the step"

    optimizer.adamw.step = watched_step
    optimizer.step()
    assert len(stepped) == 2
    assert not any(master is parameter for master in stepped for parameter in layer.parameters())
    assert stepped[0].data_ptr() != layer.weight.data_ptr()
    for tensor in (*stepped, *optimizer.tensors().values()):
        assert (tensor.device.type, tensor.dtype) == ("cpu", torch.float32)
    assert not torch.equal(layer.weight, before)
    assert torch.equal(layer.weight, optimizer.tensors()["weight.weight"].to(dtype))


def test_gradients_and_weights_pass_through_the_same_buffers_in_every_step(monkeypatch):
    """Pinned memory is taken once, in blocks that hold several tensors, not for each copy."""
    monkeypatch.setattr(optimizer_module, "BLOCK", 100)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Linear(12, 3)).bfloat16()
    optimizer = Optimizer(model, OptimizerConfig(offload=True, lr=0.01), 3)
    of_steps = []
    stepped = optimizer.adamw.step
    masters = [p for group in optimizer.adamw.param_groups for p in group["params"]]

    def watched_step() -> None:
        of_steps.append([m.grad.data_ptr() for m in masters])
        wanted = [float(g.norm()) for g in gradients]
        assert [float(m.grad.norm()) for m in masters] == pytest.approx(wanted, rel=1e-5)
        stepped()

    optimizer.adamw.step = watched_step
    for _ in range(3):
        (0.01 * model(torch.randn(4, 8).bfloat16()).square().mean()).backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    assert of_steps[0] == of_steps[1] == of_steps[2]
    assert len({m.untyped_storage().data_ptr() for m in optimizer._buffers}) == 2
    for parameter, master in zip(model.parameters(), masters, strict=True):
        assert torch.equal(parameter, master.bfloat16())


def on(device: str) -> list[torch.Tensor]:
    return [torch.empty(2, device=device)]


@pytest.mark.parametrize(
    ("parameters", "masters", "fused"),
    [("cpu", "cpu", False), ("cuda", "cuda", True), ("cuda", "cpu", True)],
    ids=["on a CPU", "on a GPU", "offloaded from a GPU"],
)
def test_where_adamw_is_one_kernel(parameters, masters, fused):
    """Offloaded from a GPU it would take ten times the CPU time without it."""
    with FakeTensorMode():
        assert has_fused_adamw(on(parameters), on(masters)) == fused


@pytest.mark.parametrize("fused", [False, True])
def test_adamw_is_one_kernel_there(monkeypatch, fused):
    monkeypatch.setattr(optimizer_module, "has_fused_adamw", lambda *_: fused)
    adamw = Optimizer(torch.nn.Linear(1, 1), OptimizerConfig(offload=True), 1).adamw
    assert adamw.defaults["fused"] == fused


def test_what_is_written_into_parameters_is_where_an_offloaded_step_begins():
    layer = torch.nn.Linear(1, 1, bias=False)
    optimizer = Optimizer(
        layer, OptimizerConfig(offload=True, lr=1e-06, scheduler={"warmup_steps": 0}), 1
    )
    with torch.no_grad():
        layer.weight.fill_(5.0)
    optimizer.parameters_changed()
    layer.weight.sum().backward()
    optimizer.step()
    assert layer.weight.item() == pytest.approx(5.0, abs=1e-4)


def test_moments_in_bfloat16_train_as_those_in_float32_do():
    whole, half = trained(100), trained(100, state_dtype="bfloat16")
    start = trained(0)
    moved = torch.cat([(a - b).flatten() for a, b in zip(whole, start, strict=True)])
    apart = torch.cat([(a - b).flatten() for a, b in zip(whole, half, strict=True)])
    assert apart.norm() < 0.1 * moved.norm()
    assert not torch.equal(apart, torch.zeros_like(apart))


def test_a_second_moment_in_bfloat16_falls_as_it_should():
    """Rounded to the nearest it would stay where it is: a step lowers it by a thousandth."""
    layer = torch.nn.Linear(100, 100, bias=False)
    config = OptimizerConfig(
        state_dtype="bfloat16", max_grad_norm=1000000000.0, scheduler={"warmup_steps": 0}
    )
    optimizer = Optimizer(layer, config, 1000)
    for step in range(1000):
        layer.weight.grad = torch.full_like(layer.weight, 1.0 if step == 0 else 0.0)
        optimizer.step()
    moment = optimizer.tensors()["exp_avg_sq.weight"]
    assert moment.dtype == torch.bfloat16
    assert float(moment.float().mean()) == pytest.approx(0.001 * 0.999**999, rel=0.02)


@given(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False))
def test_rounding_at_random_takes_a_neighbour_and_keeps_the_mean(value):
    """Exactly: the mean over each of the 2**16 equally likely draws is the value."""
    draws = 1 << 16
    every_draw = torch.arange(draws, dtype=torch.int32)
    exact = torch.full((draws,), value, dtype=torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randint", lambda high, shape, **options: every_draw)
        rounded = stochastic_round(exact)
    assert rounded.dtype == torch.bfloat16
    assert rounded.double().mean().item() == exact[0].double().item()
    lower = exact[0].view(torch.int32) >> 16 << 16
    toward_zero, away = (bits.view(torch.float32).item() for bits in (lower, lower + (1 << 16)))
    assert set(rounded.float().tolist()) <= {toward_zero, away}


def test_rounding_at_random_draws_evenly():
    """A quarter of the way to the next bfloat16 is rounded up in a quarter of the draws."""
    torch.manual_seed(0)
    draws = 100_000
    rounded = stochastic_round(torch.full((draws,), 1 + 0.25 * 2**-7)).float()
    assert set(rounded.tolist()) == {1.0, 1 + 2**-7}
    ups = int((rounded > 1).sum())
    # Binomial(draws, 1/4), whose deviation is sqrt(draws * 3/16); 6 of them come once in 10**9.
    assert abs(ups - draws / 4) < 6 * (draws * 3 / 16) ** 0.5
    halves = rounded.view(2, -1) > 1
    assert not torch.equal(halves[0], halves[1]), "each number has a draw of its own"


def test_gradients_of_bfloat16_weights_are_added_up_in_float32():
    """Beside a sum of 256 times as much, bfloat16 would lose the whole of a micro-batch."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8, bias=False).to(torch.bfloat16)
    optimizer = Optimizer(layer, OptimizerConfig(), 1)
    apart = []
    for size in (256.0, *[1.0] * 100):
        x = size * torch.rand(4, 8).to(torch.bfloat16)
        apart.append(torch.autograd.grad(layer(x).sum(), layer.weight)[0])
        layer(x).sum().backward()
    total = torch.zeros(8, 8)
    for gradient in apart:
        assert torch.equal(gradient, gradient.to(torch.bfloat16).float())
        total += gradient
    assert layer.weight.grad.dtype == torch.float32
    assert torch.equal(layer.weight.grad, total)
    optimizer.zero_grad()
    assert layer.weight.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_the_fused_kernel_steps_as_the_plain_one(monkeypatch, dtype, state_dtype):
    """Where there is one: on GPUs, and torch has it for CPUs."""
    torch.manual_seed(2)
    plain = trained(20, dtype, state_dtype=state_dtype)
    monkeypatch.setattr("mmr1.trainer.models.optimizer.has_fused_adamw", lambda *_: True)
    torch.manual_seed(2)
    for here, there in zip(trained(20, dtype, state_dtype=state_dtype), plain, strict=True):
        torch.testing.assert_close(
            here, there, atol=2e-3 if state_dtype == "bfloat16" else 1e-6, rtol=0
        )


class Operations(TorchDispatchMode):
    """Names of what is computed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_step_is_one_kernel_where_there_is_one(monkeypatch, fused, state_dtype):
    """Also of a step whose moments are rounded, a parameter at a time."""
    monkeypatch.setattr("mmr1.trainer.models.optimizer.has_fused_adamw", lambda *_: fused)
    layer = torch.nn.Linear(4, 4)
    optimizer = Optimizer(layer, OptimizerConfig(state_dtype=state_dtype), 2)
    layer(torch.ones(2, 4)).sum().backward()
    with Operations() as operations:
        optimizer.step()
    assert ("_fused_adamw_" in operations.names) == fused


def test_shards_are_numbered_and_copies_are_not(on_threads):
    """So that copies of a shard round alike, and no two shards draw the same numbers."""

    def indices(rank: int) -> list[int]:
        mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("copy", "shard"))
        local, found = torch.zeros(1, 2), []
        for placements in ((Shard(0), Shard(1)), (Replicate(), Shard(0)), (Shard(1), Replicate())):
            tensor = DTensor.from_local(local, mesh, placements, run_check=False)
            found.append(_shard_index(tensor))
        return found

    both, last, first = zip(*on_threads(6, indices), strict=True)
    assert both == (0, 1, 2, 3, 4, 5)
    assert last == (0, 1, 2, 0, 1, 2)
    assert first == (0, 0, 0, 1, 1, 1)
    assert _shard_index(torch.zeros(2)) == 0
