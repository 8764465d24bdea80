"""Videos: as qwen-vl-utils reads them, and refused by name when they are broken."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from qwen_vl_utils import fetch_video
from torchvision.transforms import InterpolationMode, functional

from datasets_prep.validate import check_sample
from mmr1.lifetime import Deadline
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision import videos
from mmr1.vision.budget import PixelBudget, VideoBudget, VideoHeader, tokens
from mmr1.vision.videos import check_video, load_video, probe_video, sampled_grid
from tests.vision.lying_videos import lying_avi
from tests.vision.media import SHARED, encoded, noise, write_video

BICUBIC = InterpolationMode.BICUBIC
SMALL = VideoBudget(frame=PixelBudget(4 * 784, 16 * 784))


def ref(path: Path, **options: object) -> MediaRef:
    return MediaRef("video", path, options=options)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clips") / "clip.mp4", frames=40)


@pytest.mark.parametrize(
    "wishes",
    [{}, {"fps": 1.0}, {"nframes": 6}, {"start": 1.0, "end": 3.0}, {"max_frames": 4}],
    ids=str,
)
def test_frames_and_times_are_those_of_qwen_vl_utils(clip: Path, wishes: dict) -> None:
    renamed = {{"start": "video_start", "end": "video_end"}.get(k, k): v for k, v in wishes.items()}
    pixels = {"min_pixels": SMALL.frame.min_pixels, "max_pixels": SMALL.frame.max_pixels}
    asked = {"video": str(clip), **pixels, **renamed}
    (expected, meta), rate = fetch_video(
        asked, return_video_metadata=True, return_video_sample_fps=True
    )
    frames, metadata = load_video(ref(clip, **wishes), SMALL)
    assert torch.equal(frames.float(), expected)
    assert metadata.frames_indices == list(meta["frames_indices"])
    assert metadata.sampled_fps == pytest.approx(rate)
    grid = sampled_grid(ref(clip, **wishes), SMALL)
    assert grid == (len(frames) // 2, frames.shape[2] // 14, frames.shape[3] // 14)


def test_the_header_counts_packets(clip: Path) -> None:
    assert probe_video(ref(clip)) == VideoHeader(40, 10.0, 64, 48)


def test_the_moving_bar_is_where_it_was_drawn(clip: Path) -> None:
    frames, metadata = load_video(ref(clip, nframes=4), SMALL)
    width = frames.shape[3]
    centres = [int(frame.float().sum((0, 1)).argmax()) / width * 64 for frame in frames]
    drawn = [index * (64 - 8) // 39 + 4 for index in metadata.frames_indices]
    assert centres == pytest.approx(drawn, abs=4)


def test_a_still_video_is_no_fault(tmp_path: Path) -> None:
    still = write_video(tmp_path / "still.mp4", still=True)
    frames, _ = load_video(ref(still, nframes=4), SMALL)
    assert torch.equal(frames[0], frames[3])


def test_a_video_inside_the_record(clip: Path) -> None:
    inside, _ = load_video(MediaRef("video", data=clip.read_bytes()), SMALL)
    outside, _ = load_video(ref(clip), SMALL)
    assert torch.equal(inside, outside)


def test_a_list_of_frames(tmp_path: Path) -> None:
    pictures = [encoded(Image.fromarray(noise(56, 28, seed))) for seed in range(3)]
    for index, picture in enumerate(pictures):
        (tmp_path / f"{index}.png").write_bytes(picture)
    listed = {
        "fps": 2.0,
        "frames": [
            {"path": f"{i}.png", "sha256": hashlib.sha256(p).hexdigest()}
            for i, p in enumerate(pictures)
        ],
    }
    path = tmp_path / "clip.frames.json"
    path.write_text(json.dumps(listed))
    frames, metadata = load_video(ref(path, min_pixels=784, max_pixels=1568), SMALL)
    assert frames.shape == (4, 3, 28, 56)  # an odd number: the last one twice
    assert np.array_equal(frames[1].permute(1, 2, 0), noise(56, 28, 1))
    assert torch.equal(frames[2], frames[3])
    assert metadata.sampled_fps == 2.0
    assert sampled_grid(ref(path, min_pixels=784, max_pixels=1568), SMALL) == (2, 2, 4)
    (tmp_path / "1.png").write_bytes(pictures[0])
    with pytest.raises(ValueError, match=r"1\.png is not the frame that was listed"):
        load_video(ref(path), SMALL)


def broken_videos(folder: Path) -> dict[str, tuple[Path, str]]:
    def file(name: str, data: bytes) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    whole = write_video(folder / "whole.mp4").read_bytes()
    return {
        "empty": (file("empty.mp4", b""), "cannot be decoded as a video"),
        "text": (file("text.mp4", b"no film at all"), "cannot be decoded as a video"),
        "picture": (file("pic.mp4", encoded(Image.new("RGB", (9, 9)))), "decoded as a video"),
        "half": (file("half.mp4", whole[: len(whole) // 2]), "cannot be decoded|holds"),
        "declares more": (lying_avi(folder / "more.avi", 444), "declares 444 frames but .* 20"),
        "declares a million": (
            lying_avi(folder / "million.avi", 5_000_000),
            "declares 5,000,000 frames, more than",
        ),
        "missing": (folder / "none.mp4", "no such file"),
        "one frame": (write_video(folder / "one.mp4", frames=1), "a single frame"),
    }


def test_broken_videos_are_refused_at_once_and_the_next_is_whole(
    tmp_path: Path, clip: Path
) -> None:
    load_video(ref(clip), SMALL)  # the decoder is running
    for path, message in broken_videos(tmp_path).values():
        start = time.perf_counter()
        with pytest.raises(ValueError, match=message) as caught:
            load_video(ref(path), SMALL)
        assert time.perf_counter() - start < 1
        assert str(caught.value).startswith(str(path))
        assert len(load_video(ref(clip), SMALL)[0]) == 8


def test_damaged_packets_are_not_replaced_by_neighbours(tmp_path: Path) -> None:
    path = write_video(tmp_path / "damaged.avi", frames=40, codec="mpeg4")
    data = bytearray(path.read_bytes())
    middle = data.index(b"movi") + (data.index(b"idx1") - data.index(b"movi")) // 2
    data[middle : middle + 600] = bytes(600)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged\.avi"):
        load_video(ref(path, nframes=40), SMALL)


def test_a_decoder_that_hangs_is_killed(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)  # opening it waits for a writer that never comes
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    with pytest.raises(ValueError, match=r"not decoded within 0\.5 s; re-encode"):
        load_video(ref(pipe), SMALL, Deadline(wall_s=0.5, cpu_s=60))
    assert len(load_video(ref(clip), SMALL)[0]) == 8


def test_a_busy_machine_costs_no_video(clip: Path) -> None:
    """A decoder that gets no core for longer than its deadline."""
    load_video(ref(clip), SMALL)  # starts it
    process = videos._decoder._process
    process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(1.0, process.send_signal, (signal.SIGCONT,))
    timer.start()
    assert len(load_video(ref(clip), SMALL, Deadline(wall_s=120, cpu_s=0.8))[0]) == 8
    assert videos._decoder._process is process


def test_decoding_is_charged_with_cpu_time(tmp_path: Path) -> None:
    """Of ten milliseconds and more, in which the system counts."""
    clip = write_video(tmp_path / "long.mp4", frames=2000)
    with pytest.raises(ValueError, match=r"not decoded within 0\.001 s of CPU time"):
        check_video(MediaRef("video", data=clip.read_bytes()), Deadline(wall_s=120, cpu_s=0.001))


def test_a_header_is_read_once_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = videos._decoder.ask

    def counted(request: dict[str, Any], deadline: Deadline) -> Any:
        asked.append(request["task"])
        return ask(request, deadline)

    monkeypatch.setattr(videos._decoder, "ask", counted)
    path = write_video(tmp_path / "v.mp4", frames=40, fps=10)
    question = Message("user", (ref(path, end=3.0), TextPart("When?")))
    sample = Sample("a", (question,), [1.0, 2.0], "tiou")
    check_sample(sample)
    assert asked == ["probe"]
    check_sample(sample, deep=True)
    assert asked == ["probe", "check"]
    write_video(path, frames=8, fps=10)
    with pytest.raises(ValueError, match="ends after the video"):
        check_sample(sample)
    assert asked == ["probe", "check", "probe"]


def test_a_decoder_that_crashes_takes_nobody_along(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_video(ref(clip), SMALL)
    process = videos._decoder._process
    monkeypatch.setattr(videos._decoder, "_started", lambda: (process.kill(), process)[1])
    with pytest.raises(ValueError, match="the decoder crashed on it"):
        load_video(ref(clip), SMALL)
    monkeypatch.undo()
    assert len(load_video(ref(clip), SMALL)[0]) == 8


@pytest.mark.skipif(SHARED is None, reason="no sample data beside this checkout")
def test_real_videos_count_alike_by_header_and_by_decoding() -> None:
    paths = [p for p in (SHARED / "samples").rglob("*") if p.suffix in (".mp4", ".avi")]
    assert len(paths) >= 3
    for path in paths:
        wishes = {"fps": 0.5}
        frames, _ = load_video(ref(path, **wishes), SMALL)
        counted = tokens(sampled_grid(ref(path, **wishes), SMALL))
        assert counted == frames.shape[0] * frames.shape[2] * frames.shape[3] // (2 * 784)


REAL = Path(os.environ.get("MMR1_TEST_VIDEOS", "/nonexistent"))
"""Unpacked Debian packages opencv-doc and python3-mecavideo."""


@pytest.mark.skipif(not REAL.is_dir(), reason="MMR1_TEST_VIDEOS names no folder of real videos")
def test_lying_headers_of_real_files() -> None:
    tree = next(REAL.rglob("tree.avi"))
    with pytest.raises(ValueError, match="declares 444 frames but the file holds 68"):
        load_video(ref(tree), SMALL)
    broken = next(REAL.rglob("Effet_force_magnetique.ogv"))
    with av.open(str(broken)) as container:
        assert container.streams.video[0].frames == 0
    frames, metadata = load_video(ref(broken), SMALL)
    assert probe_video(ref(broken)).frames == 34
    assert len(frames) == 4
    assert metadata.video_backend == "pyav"
    mega = next(REAL.rglob("Megamind.avi"))
    with av.open(str(mega)) as container:
        truth = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    exact = VideoBudget(frame=PixelBudget(784, 900 * 784))
    options = {"nframes": 12, "min_pixels": 696 * 528, "max_pixels": 728 * 532}
    frames, metadata = load_video(ref(mega, **options), exact)
    for index, frame in zip(metadata.frames_indices, frames, strict=True):
        picture = torch.from_numpy(truth[index]).permute(2, 0, 1)
        size = list(frame.shape[1:])
        assert torch.equal(frame, functional.resize(picture, size, BICUBIC, antialias=True))


def test_reading_headers_loads_no_torch() -> None:
    code = "import sys, mmr1.vision.videos, mmr1.vision.images; print('torch' in sys.modules)"
    import subprocess

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
