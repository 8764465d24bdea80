"""Media of a dataset open no other file, and their decoders see no secrets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import pytest
from PIL import Image

from mmr1.environments.pictures import Video
from mmr1.rewards.sandbox.walls import REQUIRED
from mmr1.types import MediaRef
from mmr1.vision import videos
from mmr1.vision.build import Preparers
from mmr1.vision.containers import open_video
from mmr1.vision.paths import resolve_media
from mmr1.vision.videos import check_video, load_video, probe_video
from tests.paths import REPOSITORY
from tests.vision.media import encoded, noise, write_video

MANIFESTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{secret}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile {secret}\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    "dash": "<?xml version='1.0'?><MPD type='static'><Period><AdaptationSet><Representation>"
    "<BaseURL>{secret}</BaseURL></Representation></AdaptationSet></Period></MPD>",
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    return write_video(tmp_path / "outside/secret.ts", codec="mpeg2video")


@pytest.mark.parametrize("name", ["x.m3u8", "x.mp4", "x.ffconcat", "x.mpd", "x"])
@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_is_no_video(kind: str, name: str, secret: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    path = tmp_path / "root" / name
    path.write_text(MANIFESTS[kind].format(secret="../outside/secret.ts"))
    for read in (probe_video, load_video):
        with pytest.raises(ValueError, match=r"x.*: cannot be decoded as a video: it begins with"):
            read(MediaRef("video", path))
    with pytest.raises(ValueError, match="it begins with"):
        load_video(MediaRef("video", data=path.read_bytes()))
    with pytest.raises(ValueError, match="it begins with"):
        Video(path.read_bytes()).frames([0])


def test_the_playlist_would_show_what_is_outside(secret: Path, tmp_path: Path) -> None:
    """FFmpeg alone opens it: the test above tests something."""
    path = tmp_path / "x.m3u8"
    path.write_text(MANIFESTS["hls"].format(secret="outside/secret.ts"))
    with av.open(str(path)) as container:
        assert next(container.decode(video=0)).width == 64


def test_videos_are_opened_in_one_place() -> None:
    """Any other would open playlists."""
    package = REPOSITORY / "mmr1"
    opening = [f for f in package.rglob("*.py") if "av.open(" in f.read_text()]
    assert opening == [package / "vision/containers.py"]


def test_a_pattern_of_names_is_no_video(tmp_path: Path) -> None:
    """FFmpeg would read frame1.png, frame2.png, ... in the place of the file of that name."""
    for name in ("frame1.png", "frame%d.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    with av.open(str(tmp_path / "frame%d.png")) as container:
        assert container.format.name == "image2"
    with pytest.raises((ValueError, av.FFmpegError)), open_video(str(tmp_path / "frame%d.png")):
        pass


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"),
        ("a.mov", "mpeg4"),
        ("a.mkv", "libx264"),
        ("a.webm", "libvpx"),
        ("a.avi", "mpeg4"),
        ("a.ts", "mpeg2video"),
        ("a.m2ts", "mpeg2video"),
        ("a.mpg", "mpeg2video"),
        ("a.flv", "flv"),
        ("a.wmv", "wmv2"),
        ("a.ogv", "libtheora"),
        ("a.y4m", "rawvideo"),
        ("a.nut", "mpeg4"),
        ("a.h264", "libx264"),
        ("a.ivf", "libvpx"),
    ],
)
def test_videos_of_each_container_are_opened(name: str, codec: str, tmp_path: Path) -> None:
    try:
        path = write_video(tmp_path / name, fps=25, codec=codec)
    except (av.FFmpegError, ValueError) as error:
        pytest.skip(f"this FFmpeg cannot write it: {error}")
    with av.open(str(path)) as truth:
        expected = (truth.format.name, next(truth.decode(video=0)).width)
    for source in (str(path), path.read_bytes()):
        with open_video(source) as container:
            assert (container.format.name, next(container.decode(video=0)).width) == expected


def test_the_decoder_of_videos_sees_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HF_TOKEN", "JUDGE", "MMR1_APIKEY"):
        monkeypatch.setenv(name, "hidden-9")
    videos._decoder.close()
    probe_video(MediaRef("video", write_video(tmp_path / "a.mp4")))
    process = videos._decoder._process
    assert process is not None
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    assert b"PATH=" in environment
    assert b"hidden-9" not in environment


ATTEMPTS = {
    "write": "open({path!r}, 'w')",
    "append": "open({file!r}, 'ab').write(b'more')",
    "remove": "os.unlink({file!r})",
    "connect": "socket.create_connection(('127.0.0.1', {port}), 2)",
    "send": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "start a program": "subprocess.run(['/bin/true'])",
    "end its owner": "os.kill(os.getppid(), 0)",
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_the_decoder_can_only_read(attempt: str, tmp_path: Path) -> None:
    """Code stands in the place of a task, as a broken video could make the decoder run some."""
    file = write_video(tmp_path / "a.mp4")
    whole = file.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = {"path": str(tmp_path / "new"), "file": str(file), "port": server.getsockname()[1]}
        code = ATTEMPTS[attempt].format(**places)
        program = (
            "import os, socket, subprocess\n"
            "from mmr1.vision import video_decoder\n"
            f"video_decoder.probe = lambda request: {code}\n"
            "video_decoder.main()\n"
        )
        request = json.dumps({"task": "probe", "path": str(file)}) + "\n"
        answer = subprocess.run(
            [sys.executable, "-c", program], input=request, capture_output=True, text=True
        )
        facts = json.loads(answer.stdout.splitlines()[0])
        assert not set(REQUIRED) & facts["missing"].keys()
        assert "not permitted" in facts["error"] or "ermission denied" in facts["error"]
    assert file.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [file]


def test_the_walls_let_every_task_be_done(tmp_path: Path) -> None:
    """Resizing imports torch behind them."""
    ref = MediaRef("video", write_video(tmp_path / "a.mp4"))
    videos._decoder.close()
    frames, _ = load_video(ref)
    assert len(frames) >= 2
    assert check_video(ref).frames == probe_video(ref).frames


def reads_environment() -> Callable[[MediaRef], object]:
    """Loading may need the hub's token; decoding does not."""
    assert os.environ["HF_TOKEN"] == "hidden-9"
    return lambda medium: dict(os.environ)


def test_processes_that_prepare_media_drop_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "JUDGE"):
        monkeypatch.setenv(name, "hidden-9")
    workers = Preparers(reads_environment, 1)  # type: ignore[arg-type]
    environment: object = workers.submit(MediaRef("image", data=b"")).result()
    assert isinstance(environment, dict)
    assert "PATH" in environment
    assert "hidden-9" not in environment.values()


@pytest.mark.parametrize("name", ["v.ts", "v.mpg", "v.mkv", "p.png"])
def test_a_file_that_is_a_hole_is_refused_at_once(tmp_path: Path, name: str) -> None:
    starts = {"v.ts": (b"G" + bytes(187)) * 2, "v.mpg": b"\0\0\1\xba", "v.mkv": b"\x1aE\xdf\xa3"}
    picture = encoded(Image.fromarray(noise(40, 30)))
    for size, said in ((20 << 30, "21.5 GB, more than"), (1 << 30, "of which most were never")):
        path = tmp_path / name
        path.write_bytes(starts.get(name, picture))
        with path.open("r+b") as file:
            file.truncate(size)
        with pytest.raises(ValueError, match=said):
            resolve_media(tmp_path, name)
        if name != "p.png":
            with pytest.raises(ValueError, match=said):
                load_video(MediaRef("video", path))
