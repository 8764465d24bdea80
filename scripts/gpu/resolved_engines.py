"""What vLLM's CUDA build makes of mmr1's arguments, under a card that is only pretended.

    python scripts/gpu/resolved_engines.py --card h100 --output out

``scripts/gpu/cuda_stack.sh`` runs it in an environment with the CUDA build, on a machine without a
GPU, with a library in the place of the driver's. For each recipe with vLLM that has the shapes of
a published model, vLLM resolves its whole configuration, up to the kernels of attention, and starts
nothing. A row of the table is one recipe; what vLLM refused or changed is said under it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.proposal import propose

SCRIPTS = Path(__file__).parents[1]
GIB = 2**30
GPUS = 8
FREE = 0.9
"""Share of a card's memory that ``resources: auto`` counts with."""
SHAPES = {"3B": "qwen2_5_vl_3b", "7B": "qwen2_5_vl_7b", "32B": "qwen2_5_vl_32b"}
NOT_JUDGED = "not judged"
TOKENS = ("image", "video", "vision_start", "vision_end")


@dataclass(frozen=True, slots=True)
class Card:
    """What vLLM asks a GPU for."""

    name: str
    capability: tuple[int, int]
    gib: int
    processors: int


CARDS = {
    "h100": Card("NVIDIA H100 80GB HBM3", (9, 0), 80, 132),
    "a100": Card("NVIDIA A100-SXM4-80GB", (8, 0), 80, 108),
    "rtx4090": Card("NVIDIA GeForce RTX 4090", (8, 9), 24, 128),
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """An engine of a recipe.

    Attributes:
        gpus: Ranks and engines, in words; or why there is no engine.
        settings: Settings as ``VllmEngine.settings`` says them.
        changed: Arguments of mmr1 that vLLM resolved to another value.
    """

    recipe: str
    gpus: str
    settings: str = ""
    changed: tuple[str, ...] = ()
    refused: str = ""


def pretend(card: Card) -> Any:
    """Let torch and vLLM see GPUs of this kind; returns vLLM's platform for them."""
    properties = SimpleNamespace(
        name=card.name,
        total_memory=card.gib * GIB,
        multi_processor_count=card.processors,
        major=card.capability[0],
        minor=card.capability[1],
        uuid="GPU-0",
        is_integrated=False,
        warp_size=32,
    )
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = torch.accelerator.device_count = lambda: GPUS
    torch.cuda.get_device_capability = lambda *_: card.capability
    torch.cuda.get_device_properties = lambda *_: properties  # type: ignore[assignment]

    import vllm.platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    class Pretended(cuda.CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*card.capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return card.name

        @classmethod
        def get_device_uuid(cls, device_id: int = 0) -> str:
            return "GPU-0"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return card.gib * GIB

        @classmethod
        def is_fully_connected(cls, device_ids: list[int]) -> bool:
            return True

        @classmethod
        def device_count(cls) -> int:
            return GPUS

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return card.processors

    vllm.platforms._current_platform = Pretended()
    cuda.NvmlCudaPlatform = Pretended  # type: ignore[misc]
    return Pretended


def models(folder: Path) -> dict[str, Path]:
    """Folders with published shapes, without weights, by the size of the model in its name."""
    from mmr1.vision.families.tiny import new_model

    new_model(folder / "tiny")
    tiny = json.loads((folder / "tiny/config.json").read_text())
    found = {}
    for size, name in SHAPES.items():
        found[size] = folder / size
        shutil.copytree(
            folder / "tiny", found[size], ignore=shutil.ignore_patterns("*.safetensors")
        )
        shapes = json.loads((SCRIPTS / "gpu/shapes" / name / "config.json").read_text())
        shapes |= {f"{token}_token_id": tiny[f"{token}_token_id"] for token in TOKENS}
        (found[size] / "config.json").write_text(json.dumps(shapes))
    return found


def recipes(folder: Path) -> Iterator[tuple[str, Config]]:
    """Recipes of ``mmr1 train`` that sample with vLLM from a model of such a size."""
    sizes = models(folder)
    os.environ.setdefault("ORIGINAL", str(folder))  # of exact recipes; nothing of it is read
    for file in sorted(SCRIPTS.glob("recipes/*/*.yaml")):
        text, name = file.read_text(), f"{file.parent.name}/{file.stem}"
        size = next((s for s in sizes if f"Qwen2.5-VL-{s}" in text), None)
        if size is None or "rollout:" not in text:
            continue
        with suppress(ValueError):  # of another command
            config = load_config(file, [f"model.path={sizes[size]}", "data.prompt_template=null"])
            if config.rollout.uses_vllm:
                yield f"{name} ({size})", config


class Given(Exception):  # noqa: N818 - not an error
    """The arguments that mmr1 gave vLLM."""


def arguments(config: Config) -> dict[str, Any]:
    """The arguments that mmr1 gives vLLM for an engine of this run."""
    from mmr1.rollout.build_vllm import build_vllm_engine
    from mmr1.rollout.engines import hands_over_gpu_memory
    from mmr1.rollout.vllm_settings import Transfer

    def take(**given: Any) -> None:
        raise Given(given)

    shared = config.rollout.colocated
    transfer = None
    if config.distributed:
        transfer = Transfer(shared, shared)
    elif hands_over_gpu_memory(config):
        transfer = Transfer(same_gpu=True)
    with mock.patch("vllm.LLM", take):
        try:
            build_vllm_engine(lambda media: None, config, transfer=transfer)  # type: ignore[arg-type,return-value]
        except Given as given:
            return dict(given.args[0])
    raise AssertionError("no engine was asked for")


def resolved(name: str, config: Config, platform: Any) -> Resolved:
    """What vLLM makes of a recipe's arguments."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.attention.selector import get_attn_backend

    from mmr1.rollout.vllm_settings import settings_of

    gpus = f"{config.resources.ranks} + {config.engines} x {config.rollout.gpus_per_engine}"
    try:
        given = arguments(config)
        found = EngineArgs(**given).create_engine_config(UsageContext.LLM_CLASS)
    except Exception as error:  # whatever it is, it would end the run on its first day
        return Resolved(name, gpus, refused=f"{type(error).__name__}: {str(error)[:300]}")
    model, vision = found.model_config, found.model_config.hf_config.vision_config
    with set_current_vllm_config(found):
        own = get_attn_backend(model.get_head_size(), model.dtype, found.cache_config.cache_dtype)
        width = vision.hidden_size // vision.num_heads
        tower = platform.get_vit_attn_backend(width, model.dtype)
    kinds = f"attention {own.get_name()}, tower {tower.name}, head {model.head_dtype}"
    return Resolved(
        name,
        gpus,
        f"{settings_of(found)}, {kinds}, sleep {model.enable_sleep_mode}, "
        f"second model runner {found.use_v2_model_runner}",
        tuple(_changed(given, found)),
    )


def _changed(given: dict[str, Any], found: Any) -> Iterator[str]:
    """Arguments that stand in the resolved configuration with another value."""
    sections = [value for value in vars(found).values() if hasattr(value, "__dataclass_fields__")]
    for name, value in given.items():
        for section in sections:
            if name in vars(section) and isinstance(value, bool | int | float | str):
                own = getattr(section, name)
                if str(own).removeprefix("torch.") != str(value):
                    yield f"{name}: {value} became {own}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--card", choices=CARDS, required=True)
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    given = parser.parse_args()
    card, out = CARDS[given.card], given.output / given.card
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    platform = pretend(card)
    rows = []
    for name, config in recipes(out / "models"):
        try:
            fitted = propose(config, Gpus(GPUS, FREE * card.gib * GIB)).config
        except ValueError as error:  # it does not fit, or another model would be downloaded
            row = Resolved(name, NOT_JUDGED, refused=str(error).partition(";")[0][:200])
        else:
            row = resolved(name, fitted, platform)
        rows.append(row)
        changes = [f"\n    {change}" for change in row.changed]
        print(f"{name} | {row.gpus} | {row.settings or row.refused}", *changes, flush=True)
    (out / "engines.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    shutil.rmtree(out / "models")
    sys.exit(any(row.refused and row.gpus != NOT_JUDGED for row in rows))


if __name__ == "__main__":
    main()
