"""CPU seconds and memory of decoding one video, in the process that decodes.

    python scripts/bench/videos.py --width 3840 --height 2160 --seconds 6

A file of noise and moving bars, made here; sampled at 2 frames a second, as a training run does.

    python scripts/bench/videos.py --width 640 --height 360 --seconds 10 --cached 8

prepares that many clips in the sizes of the recipe video_r1 with ``data.media_cache``: two epochs
and another run, which find nothing in memory.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import av
import common
import numpy as np
import psutil

from mmr1.config import DataConfig
from mmr1.types import MediaRef
from mmr1.vision.budget import VideoBudget
from mmr1.vision.disk_cache import preparer
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.tiny import new_model
from mmr1.vision.videos import load_video


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=3840)
    parser.add_argument("--height", type=int, default=2160)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--fps", type=int, default=30)
    parser.add_argument("--codec", default="libx264")
    parser.add_argument("--file", type=Path, help="decode this file and make none")
    parser.add_argument("--span", type=float, nargs=2, help="start and end in seconds")
    parser.add_argument("--cached", type=int, help="so many clips, with a cache on the disk")
    args = parser.parse_args()
    if args.cached:
        with tempfile.TemporaryDirectory(prefix="mmr1-bench-") as folder:
            cached(Path(folder), args)
        return
    with tempfile.TemporaryDirectory(prefix="mmr1-bench-") as folder:
        path = args.file or write(Path(folder) / "clip.mp4", args)
        options = dict(zip(("start", "end"), args.span, strict=True)) if args.span else {}
        frames, _ = load_video(MediaRef("video", path, options=options), VideoBudget())
    children = psutil.Process().children(recursive=True)
    (decoder,) = (c for c in children if "mmr1.vision.video_decoder" in c.cmdline())
    status = Path(f"/proc/{decoder.pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    spent = decoder.cpu_times()
    print(f"{len(frames)} frames of {frames.shape[3]}x{frames.shape[2]} pixels")
    print(f"peak memory {peak:,.0f} MiB, CPU {spent.user + spent.system:.1f} s")


def cached(folder: Path, args: argparse.Namespace) -> None:
    """Two epochs of a run and one of the next, in the sizes of scripts/recipes/video_r1/rl.yaml."""
    clips = []
    for number in range(args.cached):
        first = write(folder / "clip.mp4", args) if number == 0 else folder / "clip.mp4"
        path = folder / f"{number}.mp4"
        path.write_bytes(
            first.read_bytes() + bytes([number])
        )  # what follows the last box is skipped
        clips.append(MediaRef("video", path))
    new_model(folder / "model")
    data = DataConfig(media_cache={"dir": str(folder / "cache")})
    for run, epochs in (("first", 2), ("second", 1)):
        family = load_family(str(folder / "model"), fps=2.0, max_frames=16, max_pixels=100352)
        prepare = preparer(family, data)
        for epoch in range(1, epochs + 1):
            before = common.cpu_seconds()
            sizes = [prepare(clip).kept_bytes for clip in clips]
            print(
                f"{run} run, epoch {epoch}: CPU {common.cpu_seconds() - before:.2f} s, "
                f"{sum(sizes) / 2**20:,.0f} MiB"
            )


def write(path: Path, args: argparse.Namespace) -> Path:
    rng = np.random.default_rng(0)
    background = rng.integers(0, 255, (args.height, args.width, 3), np.uint8) // 4
    with av.open(str(path), "w") as container:
        stream = container.add_stream(args.codec, args.fps, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = args.width, args.height, "yuv420p"
        for number in range(round(args.seconds * args.fps)):
            picture = np.roll(background, 8 * number, axis=1)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


if __name__ == "__main__":
    main()
