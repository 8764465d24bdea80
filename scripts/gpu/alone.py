"""Checks that one GPU can run without vLLM and Ray, the dearest facts first."""

from __future__ import annotations

import gc
import socket
import time
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mmr1.config import ModelConfig, NewLoraConfig, OptimizerConfig
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.forward.logprob_head import token_logprobs
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.models.fused_layers import fuse_layers
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.weights import model_weights
from scripts.gpu.figures import Figures, Setting, SkippedError, has, within
from scripts.gpu.models import common, product_flops, random_model

GIB = 2**30


def machine(setting: Setting) -> Figures:
    """Bytes per second of memory and of the link to the host, and FLOP/s of products."""
    figures: Figures = {"product in bf16, TFLOP/s": product_flops(setting.device) / 1e12}
    size = 4096 if setting.on_gpu else 128
    square = torch.randn(size, size, device=setting.device)
    product = _seconds(setting, lambda: square @ square)
    figures["product in float32, TFLOP/s"] = 2 * size**3 / product / 1e12
    if not setting.on_gpu:
        return figures
    there = torch.empty(GIB, dtype=torch.uint8, device=setting.device)
    other = torch.empty_like(there)
    pageable = torch.empty(GIB, dtype=torch.uint8)
    pinned = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    copies: dict[str, Callable[[], object]] = {
        "copy on the GPU": lambda: other.copy_(there),
        "to fresh main memory": lambda: there.to("cpu", copy=True),
        "to pinned memory": lambda: pinned.copy_(there, non_blocking=True),
        "from pageable memory": lambda: there.copy_(pageable),
        "from pinned memory": lambda: there.copy_(pinned, non_blocking=True),
    }
    for name, copy in copies.items():
        figures[f"{name}, GB/s"] = GIB / _seconds(setting, copy) / 1e9
    return figures


def log_prob_head(setting: Setting) -> Figures:
    """Log-probs, entropies and gradients of the head in bf16, against float64."""
    rows, width, vocabulary = (1500, 2048, 151_936) if setting.on_gpu else (40, 64, 600)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, width, generator=generator).bfloat16()
    head = (torch.randn(vocabulary, width, generator=generator) * 8 / width**0.5).bfloat16()
    targets = torch.randint(10, vocabulary, (rows,), generator=generator).to(setting.device)
    weights = torch.randn(2, rows, generator=generator).to(setting.device)
    ours = [t.to(setting.device).requires_grad_() for t in (states, head)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    logprobs, entropies = token_logprobs(*ours, targets, Distribution(0.9))
    torch.stack((logprobs, entropies)).mul(weights).sum().backward()
    worst = torch.zeros(2, dtype=torch.float64, device=setting.device)
    for part in torch.arange(rows, device=setting.device).split(250):
        logs = (exact[0][part] @ exact[1].T / 0.9).log_softmax(-1)
        chosen = logs.gather(-1, targets[part, None])[:, 0]
        both = torch.stack((chosen, -(logs.exp() * logs).sum(-1)))
        both.mul(weights[:, part]).sum().backward()
        got = torch.stack((logprobs[part], entropies[part]))
        worst = torch.maximum(worst, (both - got).detach().abs().amax(-1))
    names = ("gradient of states", "gradient of the weight")
    errors = {
        name: float((a.grad.double() - b.grad).norm() / b.grad.norm())
        for name, a, b in zip(names, ours, exact, strict=True)
    }
    figures: Figures = {"log-prob, nats": float(worst[0]), "entropy, nats": float(worst[1])}
    bounds = dict.fromkeys(figures, 1e-3) | dict.fromkeys(errors, 0.01)
    return within({**figures, **errors}, bounds)


def layers_and_adapters(setting: Setting) -> Figures:
    """A checkpointed update of 3B: all weights and LoRA, with plain and with Liger's layers."""
    n, response, pixels = (8, 512, 896) if setting.on_gpu else (2, 6, 56)
    fused = (False, True) if setting.on_gpu and has("liger_kernel") else (False,)
    figures: Figures = {}
    for rank in (0, 16, 64):
        for liger in fused:
            model, family = random_model(_shape(setting), setting.device)
            groups = common.new_groups(family, 1, n, response, pixels)
            if liger:
                fuse_layers(model)
            model.gradient_checkpointing_enable({"use_reentrant": False})
            if rank:
                model = add_adapters(model, NewLoraConfig(rank=rank), freeze_vision_tower=True)
            step = _step_of(model.train(), groups)
            name = f"LoRA {rank}" if rank else "all weights"
            name += ", Liger" if liger else ""
            figures[f"{name}, s"] = _seconds(setting, step)
            if setting.on_gpu:
                figures[f"{name}, GiB"] = torch.cuda.max_memory_allocated() / GIB
            del model, step
            _forget(setting)
    return figures


def waits_and_adamw(setting: Setting) -> Figures:
    """Seconds of AdamW, and how often torch says that an update waits for the GPU."""
    model, family = random_model(_shape(setting), setting.device)
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    response, pixels = (128, 448) if setting.on_gpu else (4, 56)
    step = _step_of(model, common.new_groups(family, 2, 4, response, pixels))
    figures: Figures = {}
    for state in ("bfloat16", "float32"):
        optimizer = Optimizer(model, OptimizerConfig(state_dtype=state), 10)
        for turn in ("first", "second"):
            step()
            figures[f"AdamW, {state}, {turn} s"] = _seconds(setting, optimizer.step, repeats=1)
        del optimizer
        _forget(setting)
    if setting.on_gpu:
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            step()
        torch.cuda.set_sync_debug_mode("default")
        waited = [w for w in warned if "synchroniz" in str(w.message)]
        figures["waits of an update"] = len(waited)
        places = sorted({f"{Path(w.filename).name}:{w.lineno}" for w in waited})
        figures["where"] = "; ".join(places)
    return figures


def memory_handed_over(setting: Setting) -> Figures:
    """Memory of the GPU handed to another process, as weights are to vLLM on the same GPU."""
    if not setting.on_gpu:
        raise SkippedError("a CPU has no CUDA IPC")
    from torch.multiprocessing.reductions import reduce_tensor

    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_receive, args=(theirs,))
    process.start()
    handed = torch.ones(GIB, dtype=torch.uint8, device="cuda")
    figures: Figures = {}
    for turn in ("first", "second"):
        torch.cuda.synchronize()
        ours.send(reduce_tensor(handed)[1])
        right, seconds = ours.recv()
        assert right, "the other process read other numbers"
        figures[f"1 GiB, {turn} time, s"] = seconds
    ours.send(None)
    process.join()
    return figures


def _receive(pipe: Connection) -> None:
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    torch.cuda.init()
    while (handle := pipe.recv()) is not None:
        begin = time.perf_counter()
        copied = rebuild_cuda_tensor(*handle).clone()
        torch.cuda.synchronize()
        pipe.send((bool((copied == 1).all()), time.perf_counter() - begin))


def fsdp_of_one_rank(setting: Setting) -> Figures:
    """FSDP2 with one rank, over NCCL on a GPU: log-probs, a step and the whole weights."""
    model, family = random_model(_shape(setting), setting.device)
    response, pixels = (128, 448) if setting.on_gpu else (4, 56)
    groups = common.new_groups(family, 1, 4, response, pixels)
    folder = setting.folder / "model"
    model.save_pretrained(folder)
    family.processor.save_pretrained(folder)
    with torch.no_grad():
        alone = completion_scores(model, groups).logprobs
    del model
    _forget(setting)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    mesh = fsdp.join(0, 1, address, "127.0.0.1", 60, None, listener)
    ranks = fsdp.DistributedProcessGroup(0, 1)
    config = ModelConfig(path=str(folder), dtype="bfloat16", gradient_checkpointing=True)
    begin = time.perf_counter()
    sharded = fsdp.load(config, True, mesh=mesh)
    figures: Figures = {"load, s": time.perf_counter() - begin}
    with torch.no_grad():
        there = ranks.run(completion_scores, sharded.eval(), groups).logprobs
    figures["gap to one process, nats"] = float((there - alone).abs().mean())
    sharded.train()
    optimizer = Optimizer(sharded, OptimizerConfig(), 10)

    def step() -> None:
        ranks.run(completion_scores, sharded, groups).logprobs.sum().backward()
        optimizer.step()

    figures["step, s"] = _seconds(setting, step)
    figures["weights put together, s"] = _seconds(
        setting, lambda: sum(w.numel() for _, w in model_weights(sharded).items()), repeats=1
    )
    dist.destroy_process_group()
    return within(figures, {"gap to one process, nats": 0.05})


def _step_of(model: Any, groups: Any) -> Callable[[], None]:
    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        completion_scores(model, groups).logprobs.sum().backward()

    return step


def _seconds(setting: Setting, run: Callable[[], object], repeats: int = 3) -> float:
    """Return the median seconds of a call, after one that is not counted where it repeats."""
    if repeats > 1:
        run()
    return sorted(common.seconds(run, setting.device) for _ in range(repeats))[repeats // 2]


def _shape(setting: Setting) -> str:
    return "3b" if setting.on_gpu else "tiny"


def _forget(setting: Setting) -> None:
    gc.collect()
    if setting.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
