"""AdamW, its learning-rate schedule, and a step that refuses numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from mmr1.config import OptimizerConfig
from mmr1.runtime import FreedMemory
from mmr1.trainer.models.measured import ParameterNorms, stacked_norms
from mmr1.trainer.models.parts import parameters_of
from mmr1.trainer.models.weights import local, whole
from mmr1.types import StepStats


class NonFiniteError(RuntimeError):
    """A loss or gradient is NaN or infinite; the weights were left as they are."""


def check_finite(loss: float) -> None:
    """Check a loss before the optimizer steps.

    Raises:
        NonFiniteError: The loss is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise NonFiniteError(
            f"the loss is {loss}; the weights were not changed. Lower optimizer.lr, or look at "
            "the last rollouts for what caused it"
        )


class Optimizer:
    """AdamW over the trainable parameters of a model, for a known number of steps.

    Parameters in half precision are updated through a float32 master copy: steps of RL are often
    smaller than what bfloat16 can hold beside the weight, and would be rounded away. Their
    gradients are added up in float32 too, over the micro-batches of a step. With
    ``optimizer.offload`` there is always a copy, in main memory, and AdamW steps there.
    """

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig, steps: int) -> None:
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._names = list(trained)
        self._parameters = list(trained.values())
        for parameter in self._parameters:
            parameter.grad_dtype = torch.float32
        self._masters = [_master(p, config.offload) for p in self._parameters]
        pairs = zip(self._parameters, self._masters, strict=True)
        self._copied = any(master is not parameter for parameter, master in pairs)
        self._buffers: list[torch.Tensor] = []  # of the masters, with optimizer.offload
        self._config = config
        self._freed = FreedMemory()
        self._steps = steps
        self.steps_taken = 0
        self.adamw = torch.optim.AdamW(
            _groups(model, dict(zip(self._names, self._masters, strict=True)), config),
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=has_fused_adamw(self._parameters, self._masters),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters."""
        return tuple(self._names)

    def step(self) -> StepStats:
        """Clip the accumulated gradient by its global norm and step.

        Returns:
            The norm before clipping as ``grad_norm``, and the learning rate as ``lr``.

        Raises:
            NonFiniteError: If the norm is not finite. Nothing was changed.
        """
        return self._step(lambda: self._apply_adamw({}))

    def measured_step(self) -> tuple[StepStats, ParameterNorms]:
        """Step as :meth:`step` does, to the same bits, and measure each parameter.

        Parameters are updated one after another, so that only one is held twice.

        Raises:
            NonFiniteError: See :meth:`step`.
        """
        found: list[torch.Tensor] = []

        def measure_gradients() -> None:
            found.append(stacked_norms([master.grad for master in self._masters]))

        stats = self._step(lambda: found.append(self._apply_adamw_apart()), measure_gradients)
        return stats, ParameterNorms(*found)

    def _step(
        self, apply: Callable[[], None], before_clip: Callable[[], None] = lambda: None
    ) -> StepStats:
        if self._copied:
            self._gradients_to_masters()
        before_clip()
        clipped = torch.nn.utils.clip_grad_norm_(self._masters, self._config.max_grad_norm)
        # Over all ranks where the parameters are sharded.
        norm = float(whole(clipped))
        if not math.isfinite(norm):
            self.zero_grad()
            raise NonFiniteError(
                f"the gradient's norm is {norm}; the weights were not changed. Lower "
                "optimizer.lr, or look at the last rollouts for what caused it"
            )
        lr = self._config.lr * schedule_factor(self.steps_taken, self._steps, self._config)
        for group in self.adamw.param_groups:
            group["lr"] = group["share"] * lr
        apply()
        self.steps_taken += 1
        self.zero_grad()
        if self._copied:
            self._masters_to_parameters()
        self._freed.end_step()
        return {"grad_norm": norm, "lr": lr}

    def _apply_adamw(self, generators: Generators) -> None:
        """Update the masters that have a gradient.

        Args:
            generators: Random numbers of the step so far; see :func:`step_with_rounded_moments`.
        """
        if self._config.state_dtype == "bfloat16":
            for master in self._masters:
                self._state_of(master)
            step_with_rounded_moments(self.adamw, self.steps_taken, generators)
        else:
            self.adamw.step()

    @torch.no_grad()
    def _apply_adamw_apart(self) -> torch.Tensor:
        """Update one master after another; return the norm of each change, ``[W]``."""
        place = {id(master): index for index, master in enumerate(self._masters)}
        gradients = [master.grad for master in self._masters]
        self.zero_grad()
        norms = torch.zeros(len(self._masters))
        generators: Generators = {}
        for master in (each for group in self.adamw.param_groups for each in group["params"]):
            if (gradient := gradients[place[id(master)]]) is None:
                continue
            before, master.grad = master.detach().clone(), gradient
            self._apply_adamw(generators)
            norms[place[id(master)]] = stacked_norms([master.detach() - before])[0]
            master.grad = None
        return norms

    @torch.no_grad()
    def parameters_changed(self) -> None:
        """Copy the parameters, which were written before the first step, into the masters."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                master.copy_(parameter)

    def zero_grad(self) -> None:
        """Drop the accumulated gradient."""
        for parameter in (*self._masters, *self._parameters):
            parameter.grad = None

    @torch.no_grad()
    def _gradients_to_masters(self) -> None:
        pairs = zip(self._parameters, self._masters, strict=True)
        moved = [i for i, (p, m) in enumerate(pairs) if m is not p and p.grad is not None]
        gradients = [_gradient(self._parameters[i]) for i in moved]
        if self._config.offload:
            buffers = [self._in_main_memory()[i] for i in moved]
            copy_to_buffers(buffers, gradients)
            gradients = buffers
        for i, gradient in zip(moved, gradients, strict=True):
            self._masters[i].grad = gradient
            self._parameters[i].grad = None

    @torch.no_grad()
    def _masters_to_parameters(self) -> None:
        if self._config.offload:
            copy_to_parameters(self._masters, self._parameters, self._in_main_memory())
            return
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    def _in_main_memory(self) -> list[torch.Tensor]:
        """Buffers for gradients on their way to the masters, and for weights on their way back."""
        if not self._buffers:
            on_gpu = any(local(p).is_cuda for p in self._parameters)
            self._buffers = buffers_for(self._masters, pinned=on_gpu)
        return self._buffers

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors that later steps depend on: the trained weights in float32, AdamW's two
        moments and its step count of each, by ``weight.NAME``, ``exp_avg.NAME``, ...

        They are the tensors that the optimizer works on, not copies.
        """
        tensors: dict[str, torch.Tensor] = {}
        for name, master in zip(self._names, self._masters, strict=True):
            state = self._state_of(master)
            tensors[f"weight.{name}"] = master.detach()
            tensors |= {f"{key}.{name}": state[key] for key in ("exp_avg", "exp_avg_sq", "step")}
        return tensors

    def tensors_loaded(self) -> None:
        """Copy the masters to the model after the tensors of ``tensors()`` were written."""
        self._masters_to_parameters()

    def state_dict(self) -> dict[str, int]:
        return {"steps_taken": self.steps_taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps_taken = state["steps_taken"]

    def _state_of(self, master: torch.Tensor) -> dict[str, torch.Tensor]:
        """AdamW's state of a parameter, made as AdamW does where no gradient has come yet."""
        state = self.adamw.state[master]
        if not state:
            device = master.device if self.adamw.defaults["fused"] else None
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for name in MOMENTS:
                state[name] = torch.zeros_like(
                    master, dtype=getattr(torch, self._config.state_dtype)
                )
        return state


def _groups(
    model: torch.nn.Module, masters: Mapping[str, torch.Tensor], config: OptimizerConfig
) -> list[dict[str, Any]]:
    """Return AdamW's groups: one for each learning rate and decay, with its share of ``lr``."""
    rates = dict.fromkeys(masters, config.lr)
    for part, rate in config.lr_of_parts.items():
        rates |= dict.fromkeys(
            parameters_of(model, part, "optimizer.lr_of_parts") & rates.keys(), rate
        )
    groups: dict[tuple[float, float], list[torch.Tensor]] = {}
    for name, master in masters.items():
        decays = config.decay_norms_and_biases or master.dim() > 1
        groups.setdefault((rates[name], config.weight_decay if decays else 0.0), []).append(master)
    return [
        {"params": params, "share": rate / config.lr, "weight_decay": decay}
        for (rate, decay), params in groups.items()
    ]


def _master(parameter: torch.Tensor, offload: bool) -> torch.Tensor:
    """The tensor that AdamW updates in the parameter's place."""
    if offload:
        return parameter.detach().to("cpu", torch.float32, copy=True)
    return parameter if parameter.dtype == torch.float32 else parameter.detach().float()


def has_fused_adamw(parameters: Sequence[torch.Tensor], masters: Sequence[torch.Tensor]) -> bool:
    """True if one kernel updates all of a parameter. Without it a GPU holds another copy of a
    moment for a while, and a CPU, to which masters are offloaded, takes ten times as long.

    Not where the parameters are on a CPU: there the results would have other last bits.
    """
    devices = set(_get_fused_kernels_supported_devices())
    on_cpu = any(parameter.device.type == "cpu" for parameter in parameters)
    return not on_cpu and all(master.device.type in devices for master in masters)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient in float32, in which it was added up."""
    assert parameter.grad is not None
    return parameter.grad.to(torch.float32)


def schedule_factor(step: int, steps: int, config: OptimizerConfig) -> float:
    """Share of the full learning rate at ``step`` (from 0): linear warm-up, then the schedule.

    Linear and cosine end at ``min_lr``, after ``scheduler.steps`` if that is set. A share of
    warm-up steps is of these, or of all ``steps``, rounded down as in verl and EasyR1.

    >>> config = OptimizerConfig(scheduler={"warmup_steps": 2, "type": "linear"})
    >>> [schedule_factor(s, 6, config) for s in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    schedule = config.scheduler
    end = steps if schedule.type == "constant" else schedule.steps or steps
    warmup = schedule.warmup_steps
    if isinstance(warmup, float):
        warmup = int(warmup * end)
    if step < warmup:
        return (step + 1) / warmup
    if schedule.type == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, end - warmup))
    is_cosine = schedule.type == "cosine"
    left = 0.5 * (1 + math.cos(math.pi * progress)) if is_cosine else 1 - progress
    lowest = config.min_lr / config.lr
    return lowest + (1 - lowest) * left


def averaged(steps: Sequence[StepStats]) -> StepStats:
    """The metrics of a rollout from those of its optimizer steps: means, the largest where a name
    ends in ``_max``, the last where it ends in ``_last``, and the last learning rate.

    A step whose tokens are all masked did not measure what is a mean of tokens; the others count.

    >>> averaged([{"loss": 1.0, "x_max": 3.0, "lr": 2.0}, {"loss": 2.0, "x_max": 1.0, "lr": 1.0}])
    {'loss': 1.5, 'x_max': 3.0, 'lr': 1.0}
    """
    averages: StepStats = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        if name == "lr" or name.endswith("_last"):
            averages[name] = values[-1]
        else:
            averages[name] = max(values) if name.endswith("_max") else fmean(values)
    return averages


BLOCK = 1 << 26
"""Elements of a block; torch's allocator of pinned memory rounds up to a power of two."""


def buffers_for(masters: Sequence[torch.Tensor], pinned: bool) -> list[torch.Tensor]:
    """A float32 buffer of the shape of each, sharded where it is; their values are undefined.

    They lie in blocks that are allocated once. Where the trained weights are on a GPU the blocks
    are pinned: copies from and to pageable memory go through a small buffer of the driver's, one at
    a time, and hold up whoever asks for them.
    """
    sizes = [local(master).numel() for master in masters]
    buffers: list[torch.Tensor] = []
    block, used = torch.empty(0), 0
    for i, (master, size) in enumerate(zip(masters, sizes, strict=True)):
        if used + size > len(block):
            block, used = torch.empty(_block_size(sizes[i:]), pin_memory=pinned), 0
        own = block[used : used + size].view(local(master).shape)
        used += size
        if isinstance(master, DTensor):  # from_local would move it to the mesh's device
            own = DTensor(own, master._spec, requires_grad=False)
        buffers.append(own)
    return buffers


def _block_size(sizes: Sequence[int]) -> int:
    """The size of the next block: the fixed one, that of the first tensor, or the rest of all."""
    return max(sizes[0], min(BLOCK, sum(sizes)))


def copy_to_buffers(buffers: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy tensors of a device into the buffers, and wait."""
    for buffer, tensor in zip(buffers, tensors, strict=True):
        local(buffer).copy_(local(tensor), non_blocking=True)
    _wait(tensors)


def copy_to_parameters(
    masters: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
) -> None:
    """Copy masters to the parameters, rounded to their type in the buffers, and wait.

    Half as many bytes go to a GPU as the masters have.
    """
    for master, parameter, buffer in zip(masters, parameters, buffers, strict=True):
        own, there = local(master), local(parameter)
        rounded = local(buffer).view(-1).view(there.dtype)[: own.numel()].view(own.shape)
        rounded.copy_(own)
        there.copy_(rounded, non_blocking=True)
    _wait(parameters)


def _wait(tensors: Sequence[torch.Tensor]) -> None:
    if any(local(tensor).is_cuda for tensor in tensors):
        torch.cuda.synchronize()


MOMENTS = ("exp_avg", "exp_avg_sq")
Generators = dict[tuple[torch.device, int], torch.Generator]
"""Random numbers of a step, by device and shard."""
_LOWER_BITS = 16  # of float32, those that bfloat16 has not


@torch.no_grad()
def step_with_rounded_moments(
    optimizer: torch.optim.AdamW, number: int, generators: Generators
) -> None:
    """``optimizer.step()``, a parameter at a time: one pair of float32 moments exists at once.

    The state of each parameter must be there (``exp_avg``, ``exp_avg_sq`` bfloat16, ``step``).

    Args:
        number: Number of the step, from which the random numbers come. Where several ranks hold a
            copy of a shard, all round it alike.
        generators: Generators that this step has used so far; it adds those it needs.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            moments = [state[name].float() for name in MOMENTS]
            adamw(
                [parameter],
                [parameter.grad],
                [moments[0]],
                [moments[1]],
                [],
                [state["step"]],
                fused=optimizer.defaults["fused"],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            for name, moment in zip(MOMENTS, moments, strict=True):
                own, shard = local(moment), _shard_index(moment)
                generator = generators.setdefault(
                    (own.device, shard),
                    torch.Generator(own.device).manual_seed(number << 20 | shard),
                )
                local(state[name]).copy_(stochastic_round(own, generator))


def _shard_index(tensor: torch.Tensor) -> int:
    """The index of this rank's shard, equal for copies of the same one; 0 for a whole tensor."""
    if not isinstance(tensor, DTensor):
        return 0
    index = 0
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_shard():
            rank = tensor.device_mesh.get_local_rank(dimension)
            index = index * tensor.device_mesh.size(dimension) + rank
    return index


def stochastic_round(
    values: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """float32 to bfloat16, to either neighbour with the probability that keeps the mean.

    A second moment moves by a thousandth of itself in a step (beta2 = 0.999), and bfloat16 holds
    steps of a hundred and twenty-eighth: rounded to the nearest it would never fall again (Gupta
    et al., arXiv:1502.02551; for bfloat16 training, Zamirai et al., arXiv:2010.06192).
    """
    bits = values.view(torch.int32)
    noise = torch.randint(
        1 << _LOWER_BITS, bits.shape, generator=generator, dtype=torch.int32, device=bits.device
    )
    return ((bits + noise) >> _LOWER_BITS << _LOWER_BITS).view(torch.float32).to(torch.bfloat16)
