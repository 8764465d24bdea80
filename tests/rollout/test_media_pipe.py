"""Media beside a pipe: the same pixels, few bytes in the pipe, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmr1.rollout.admission import Prepared
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.media_pipe import receive, send
from mmr1.rollout.protocol import complete
from mmr1.types import MediaRef, Message, Prompt, Sample
from mmr1.vision.prepare import Medium
from tests.asking import asks
from tests.rollout.media_images import image
from tests.rollout.process_engines import build


def request(text: str, *media: Medium) -> Prepared:
    return Prepared(asks(Prompt(Sample("1", ()), text, ()), 1, 0), media)


def traces() -> list[str]:
    """What this process has of the memory of media: descriptors and maps."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    held = [str(link.readlink()) for link in links]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in (*held, *maps) if "mmr1-media" in line]


def named(medium: Medium) -> list[Path]:
    """Files in /dev/shm, where other programs have theirs, that begin with a medium's pixels."""
    begin = medium.patches.numpy().tobytes()[:64]
    files = [path for path in Path("/dev/shm").iterdir() if path.is_file()]
    return [path for path in files if begin in path.open("rb").read(4096)]


def test_all_that_is_sent_arrives():
    video = Medium(
        "video", torch.randn(8, 3), (2, 2, 2), 2, 0.5, "v", 16, (0.0, 1.5), {"fps": 2}, 7
    )
    pixels = Medium("image", torch.arange(27, dtype=torch.uint8).view(1, 3, 3, 3),
                           (1, 3, 3), 1, None, "p")  # fmt: skip
    empty = Medium("image", torch.zeros(0, 3), (0, 2, 2), 2, None, "e")
    near, far = multiprocessing.Pipe()
    sent = ("stream", [pixels, {"videos": (video, image(3)), 1: "text"}, empty], pixels)
    send(near, sent)
    kind, (first, others, none), again = receive(far)
    assert (kind, others[1]) == ("stream", "text")
    for actual, expected in [
        (first, pixels), (others["videos"][0], video), (others["videos"][1], image(3)),
        (none, empty), (again, pixels),
    ]:  # fmt: skip
        assert actual.patches.dtype == expected.patches.dtype
        assert torch.equal(actual.patches, expected.patches)
        for name in ("kind", "grid", "merge", "seconds_per_grid", "digest", "patch_size", "times",
                     "metadata", "counted"):  # fmt: skip
            assert getattr(actual, name) == getattr(expected, name), name
    assert first.patches.data_ptr() == again.patches.data_ptr()  # written once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_pixels_get_the_engines_type_and_bytes_stay_bytes(dtype):
    near, far = multiprocessing.Pipe()
    frames = Medium("image", torch.full((1, 2, 2, 3), 200, dtype=torch.uint8),
                           (1, 2, 2), 1, None, "frames")  # fmt: skip
    send(near, [image(5), frames], dtype)
    cast, kept = receive(far)
    assert torch.equal(cast.patches, image(5).patches.to(dtype))
    assert torch.equal(kept.patches, frames.patches)


def test_what_goes_through_the_pipe_does_not_depend_on_the_pictures_size(monkeypatch):
    near, far = multiprocessing.Pipe()
    sizes = []
    own = type(near).send_bytes
    monkeypatch.setattr(
        type(near), "send_bytes", lambda pipe, data: (sizes.append(len(data)), own(pipe, data))
    )
    for side in (10, 11, 1000):
        send(near, ("advance", {1: request("a", image(side, "the same"))}))
        receive(far)
    assert image(1000).patches.nbytes == 48e6
    assert max(sizes) - min(sizes) < 20  # digits of the grid and of the shape
    assert max(sizes) < 2000


def test_memory_lives_as_long_as_a_medium_of_its_message():
    near, far = multiprocessing.Pipe()
    send(near, [image(40), image(50)])
    assert traces() == []  # of the sender
    first, second = receive(far)
    pixels = second.patches
    del first, second
    assert len(traces()) == 1  # a map, and no descriptor
    assert torch.equal(pixels, image(50).patches)
    del pixels
    assert traces() == []


def test_an_engine_that_dies_with_media_leaves_nothing(tmp_path):
    """It is killed while it has them, its replacement is sent them again and killed in turn."""
    large = image(300)
    media = {"die": large, "b": image(200)}

    def prepared(ref: MediaRef) -> Medium:
        return media[ref.data.decode()]

    engine = EngineProcess(
        build, (str(tmp_path),), prepared, tmp_path / "engine.log", 1, 60, restarts=1
    )
    try:
        refs = {name: MediaRef("image", data=name.encode()) for name in media}
        samples = {name: Sample("1", (Message("user", (ref,)),)) for name, ref in refs.items()}
        asked = [asks(Prompt(sample, name, ()), 1, 0) for name, sample in samples.items()]
        groups = complete(engine, asked)
        assert ([g.prompt.text for g in groups], engine.restarted) == (["die", "b"], 1)
        assert traces() == []
        engine._process.kill()
        engine._process.join()
        assert (traces(), named(large)) == ([], [])
    finally:
        engine.close()


UNREAD = """
import multiprocessing, os, signal
from mmr1.rollout.media_pipe import send
from tests.rollout.media_images import image
from tests.asking import asks

near, far = multiprocessing.Pipe()
send(near, [image(300)])
os.kill(os.getpid(), signal.SIGKILL)  # the message is under way
"""


def test_a_trainer_that_is_killed_leaves_nothing():
    assert subprocess.run([sys.executable, "-c", UNREAD]).returncode == -9
    assert named(image(300)) == []
