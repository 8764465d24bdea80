"""CPU seconds and memory of decoding one video, in the process that decodes.

    python scripts/bench/videos.py --width 3840 --height 2160 --seconds 6

A file of noise and moving bars, made here; sampled at 2 frames a second, as a training run does.

"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import av
import numpy as np
import psutil

from mmr1.types import MediaRef
from mmr1.vision.budget import VideoBudget
from mmr1.vision.videos import BACKENDS, load_video


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=3840)
    parser.add_argument("--height", type=int, default=2160)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--fps", type=int, default=30)
    parser.add_argument("--codec", default="libx264")
    parser.add_argument("--file", type=Path, help="decode this file and make none")
    parser.add_argument("--backend", default="auto", choices=BACKENDS)
    parser.add_argument("--span", type=float, nargs=2, help="start and end in seconds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mmr1-bench-") as folder:
        path = args.file or write(Path(folder) / "clip.mp4", args)
        options = dict(zip(("start", "end"), args.span, strict=True)) if args.span else {}
        frames, _ = load_video(
            MediaRef("video", path, options=options), VideoBudget(backend=args.backend)
        )
    children = psutil.Process().children(recursive=True)
    (decoder,) = (c for c in children if "mmr1.vision.video_decoder" in c.cmdline())
    status = Path(f"/proc/{decoder.pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    spent = decoder.cpu_times()
    print(f"{len(frames)} frames of {frames.shape[3]}x{frames.shape[2]} pixels")
    print(f"peak memory {peak:,.0f} MiB, CPU {spent.user + spent.system:.1f} s")


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
