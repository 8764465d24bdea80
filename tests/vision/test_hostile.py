"""A batch with hostile files in it: each refused at once, without memory, the others loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests.vision.lying_videos import lying_avi
from tests.vision.media import bomb_png, encoded, noise, write_video

LOAD = """
import json, sys, time
import psutil
from pathlib import Path
from mmr1.types import MediaRef
from mmr1.vision.budget import VideoBudget
from mmr1.vision.images import load_image
from mmr1.vision.videos import load_video

def load(path):
    kind = "image" if path.suffix == ".png" else "video"
    ref = MediaRef(kind, path)
    return load_image(ref) if kind == "image" else load_video(ref, VideoBudget())

def memory():
    "Peak MiB of this process and of the decoder."
    me = psutil.Process()
    status = [Path(f"/proc/{p.pid}/status").read_text() for p in (me, *me.children())]
    return sum(int(text.split("VmHWM:")[1].split()[0]) for text in status) / 1024

folder = Path(sys.argv[1])
load(folder / "good.png"), load(folder / "good.mp4")
before, found = memory(), {}
for path in sorted(folder.iterdir()):
    begin = time.perf_counter()
    try:
        load(path)
        said = ""
    except ValueError as error:
        said = str(error)
    found[path.name] = [said, time.perf_counter() - begin]
print(json.dumps({"grown": memory() - before, "found": found}))
"""


def test_a_batch_with_hostile_files(tmp_path: Path) -> None:
    good = encoded(Image.fromarray(noise(640, 480)))
    write_video(tmp_path / "good.mp4")
    write_video(tmp_path / "good again.mp4", frames=30)
    for name, data in {
        "good.png": good,
        "good again.png": good,
        "bomb.png": bomb_png(50_000, 50_000),
        "cut.png": good[: len(good) // 2],
        "empty.png": b"",
        "empty.mp4": b"",
        "text.png": b"no picture",
        "picture.mp4": good,
    }.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "video.png").write_bytes((tmp_path / "good.mp4").read_bytes())
    (tmp_path / "cut.mp4").write_bytes((tmp_path / "good.mp4").read_bytes()[:300])
    lying_avi(tmp_path / "million.avi", 1_000_001)

    ran = subprocess.run(
        [sys.executable, "-c", LOAD, tmp_path], capture_output=True, text=True, check=True
    )
    told = json.loads(ran.stdout)
    assert told["grown"] < 200, told
    for name, (said, seconds) in told["found"].items():
        assert seconds < 1, name
        assert said.startswith(str(tmp_path / name)) != name.startswith("good"), (name, said)
