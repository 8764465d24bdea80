"""vLLM engines that count what they compute, and shaken weights."""

from __future__ import annotations

from pathlib import Path

import torch

from mmr1.config import RolloutConfig, SamplingConfig
from mmr1.vision.families.loading import load_family

SAMPLING = SamplingConfig(max_tokens=12, temperature=0.9)


def shake(model, scale: float, generator: torch.Generator) -> None:
    """An update of sorts: noise on everything that learns."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn(parameter.shape, generator=generator)


BLOCK = 32


def counting_engine(media, path: str, log: str, vision_frozen: bool):
    """An engine that notes how many rows go through its tower and its first decoder layer."""
    from mmr1.rollout.vllm import VllmEngine

    config = RolloutConfig(max_prompt_length=192, max_response_length=64)
    engine = VllmEngine(
        path, config, load_family(path), media, "float32", 0, vision_frozen=vision_frozen
    )

    def note(name: str, rows: int) -> None:
        with Path(log).open("a") as file:
            file.write(f"{name} {rows}\n")

    def watch(worker) -> None:
        model = worker.model_runner.model
        model.visual.register_forward_hook(lambda _, inputs, rows: note("vision", len(rows)))
        layer = model.language_model.model.layers[0]
        layer.register_forward_hook(lambda _, inputs, outputs: note("language", len(outputs[0])))

    engine._llm.collective_rpc(watch)
    admit = engine._queue.admit

    def admitted():
        requests = admit()
        note("held", engine._queue._used)
        return requests

    engine._queue.admit = admitted
    return engine


def counted(log: Path) -> dict[str, int]:
    """The rows since the last time, and the most vision tokens that were under way."""
    rows = {"vision": 0, "language": 0, "held": 0}
    for line in log.read_text().splitlines():
        name, count = line.split()
        rows[name] = max(rows[name], int(count)) if name == "held" else rows[name] + int(count)
    log.write_text("")
    return rows
