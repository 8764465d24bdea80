"""The last step of a conversion: check media and gold answer of a sample, and store its media."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from datasets_prep.task_checks import check_needs
from mmr1.data.record import dump, encode
from mmr1.files import atomic_binary, sha256_of, stamp
from mmr1.rewards.item import Job
from mmr1.rewards.kind import gold_check, reward_of_task
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.images import check_image
from mmr1.vision.paths import resolve_media
from mmr1.vision.videos import check_video, probe_video

GOLD_SECONDS = 5


def finish(sample: Sample, folder: Path, embed: bool = False) -> str:
    """The record line of a sample; its media are copied to ``folder / "media"`` or embedded.

    Raises:
        ValueError: A medium does not decode, the gold answer cannot be read by the reward of its
            task, or the record lacks what the task needs.
    """
    check_gold(sample)

    def with_stored_media(message: Message) -> Message:
        content = (
            p if isinstance(p, TextPart) else _store(p, folder, embed) for p in message.parts
        )
        return Message(message.role, tuple(content))

    messages = tuple(with_stored_media(message) for message in sample.messages)
    final = Sample(
        sample.id, messages, sample.answer, sample.task, sample.source, dict(sample.meta)
    )
    check_needs(final)
    return dump(encode(final, folder))


def check_media(ref: MediaRef, deep: bool = False) -> tuple[int, int]:
    """``(width, height)`` of a medium. Images are decoded.

    Of videos the packets are read, or with ``deep`` every frame is decoded.

    Raises:
        ValueError: If the medium cannot be decoded.
    """
    if ref.kind == "image":
        return check_image(ref)
    header = check_video(ref) if deep else probe_video(ref)
    return header.width, header.height


def _store(ref: MediaRef, folder: Path, embed: bool) -> MediaRef:
    if ref.kind == "image" and ref.path is not None and not embed:
        target, size = _checked_image(str(ref.path), ref.size, stamp(ref.path), folder)
        if not os.path.exists(target):  # noqa: PTH110 - for every medium of every record
            link_or_copy(ref.path, target)
        return MediaRef(ref.kind, target, None, size, ref.options)
    size = check_media(ref)
    if embed:
        return MediaRef(ref.kind, None, ref.read(), size, ref.options)
    if ref.path is not None and ref.path.name.endswith(".frames.json"):
        return MediaRef(ref.kind, copy_frames(ref.path, folder), None, size, ref.options)
    if ref.path is not None:
        path = folder / _place(sha256_of(ref.path).hex(), ref.path.suffix.lower())
        link_or_copy(ref.path, path)
    else:
        data = ref.read()
        path = folder / _place(hashlib.sha256(data).hexdigest(), _suffix(ref.kind, data))
        write_bytes(path, data)
    return MediaRef(ref.kind, path, None, size, ref.options)


@lru_cache(maxsize=1 << 14)
def _checked_image(
    name: str, size: tuple[int, int] | None, _stamp: tuple[int, ...], folder: Path
) -> tuple[Path, tuple[int, int] | None]:
    """The stored picture and its size; a picture of many rows is decoded once per process."""
    ref = MediaRef("image", Path(name), None, size)
    place = _place(sha256_of(name).hex(), Path(name).suffix.lower())
    return folder / place, check_media(ref)


def _place(digest: str, suffix: str) -> str:
    return f"media/{digest[:2]}/{digest[:32]}{suffix}"


def _suffix(kind: str, data: bytes) -> str:
    if kind == "video":
        return ".mp4"
    suffixes = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"RIFF": ".webp", b"GIF8": ".gif"}
    return next((suffix for magic, suffix in suffixes.items() if data.startswith(magic)), ".img")


def copy_frames(path: Path, folder: Path) -> Path:
    """Copy a frame list and its frames into a separate folder."""
    text = path.read_bytes()
    target = folder / "media" / f"{hashlib.sha256(text).hexdigest()[:32]}"
    for frame in json.loads(text)["frames"]:
        write_bytes(target / frame["path"], resolve_media(path.parent, frame["path"]).read_bytes())
    write_bytes(target / path.name, text)
    return target / path.name


def link_or_copy(path: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where there are no links.

    A link takes a hundredth of the time. Like a copy it outlives the first name.
    """
    try:
        try:
            os.link(path, target)
        except FileNotFoundError:  # the first of its folder
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
            os.link(path, target)
    except FileExistsError:  # it is there already, or another process was first
        pass
    except OSError:  # another file system, or one without hard links
        write_bytes(Path(target), Path(path).read_bytes())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file named by its content, atomically, so that several workers may write it."""
    if path.exists():
        return
    with atomic_binary(path, sync=False) as (file,):
        file.write(data)


def check_gold(sample: Sample) -> None:
    """Check that the reward function of the sample's task can read its gold answer in time.

    Raises:
        ValueError: If the gold answer cannot be read, so that no completion could be scored.
    """
    reward = reward_of_task(sample.task)
    check = gold_check(reward) if reward is not None else None
    if check is None or sample.answer is None:
        return
    options = sample.meta.get("options")
    extra = {"options": options} if reward == "choice" and options else {}
    if isinstance(sample.answer, str) and not extra:
        _check_text_gold(reward, sample.answer)
    else:
        _check_in_time(check, sample.answer, extra)


@lru_cache(maxsize=1 << 14)
def _check_text_gold(reward: str, answer: str) -> None:
    """Check a gold, cached as many records have the same: a letter, a small number."""
    check = gold_check(reward)
    assert check is not None
    _check_in_time(check, answer, {})


def _check_in_time(check: Callable[..., Any], answer: Any, extra: Mapping[str, Any]) -> None:
    job = check(answer, **extra)
    if not isinstance(job, Job):
        return
    module, _, function = job.target.partition(":")
    verifier = _warm(module)  # the deadline must neither pay for an import nor cut one in two
    with _deadline(GOLD_SECONDS):
        getattr(verifier, function)(*job.args)


@cache
def _warm(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if hasattr(module, "warm"):
        module.warm()
    return module


@contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    """Interrupt the main thread's pure-Python work after so many seconds of CPU time.

    Not of the clock on the wall: how busy the machine is must not drop a row.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise ValueError(f"the gold answer cannot be read within {seconds} s")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
