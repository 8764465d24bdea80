"""The right frames at the right times, over codecs and containers.

The truth: every frame decoded in order by PyAV, and the number that was drawn into it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import av
import numpy as np
import pytest

from mmr1.types import MediaRef
from mmr1.vision.budget import PixelBudget, VideoBudget
from mmr1.vision.videos import BACKENDS as BACKEND_PACKAGES
from mmr1.vision.videos import check_backend, check_video, load_video, probe_video
from tests.vision.media import noise, number_in, write_numbered, write_video
from tests.vision.slowed_videos import SLOWING

EXACT = VideoBudget(frame=PixelBudget(784, 64 * 784))
"""224 x 56 pixels are left as they are."""
B_FRAMES = {"max_b_frames": 2, "gop_size": 12}
FILES: dict[str, dict] = {
    "h264.mp4": {"gop_size": 10},
    "h264.mov": {},
    "h264.mkv": {"gop_size": 10},
    "h264.ts": {},
    "h264.flv": {},
    "h264.avi": {},
    "open-gop.mp4": {"options": {"x264-params": "open-gop=1:keyint=10:bframes=3"}},
    "intra-refresh.mp4": {"options": {"x264-params": "intra-refresh=1:keyint=10"}},
    "intra-refresh.mkv": {"options": {"x264-params": "intra-refresh=1:keyint=10"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "keyint=10:log-level=none"}},
    "hevc.mkv": {"codec": "libx265", "options": {"x265-params": "keyint=10:log-level=none"}},
    "vp8.webm": {
        "codec": "libvpx",
        "options": {"auto-alt-ref": "1", "lag-in-frames": "16"},
        "gop_size": 20,
    },
    "vp9.webm": {"codec": "libvpx-vp9", "gop_size": 20},
    "vp9.mp4": {"codec": "libvpx-vp9"},
    "mpeg4.avi": {"codec": "mpeg4", **B_FRAMES},
    "mpeg4.mp4": {"codec": "mpeg4", **B_FRAMES},
    "mpeg2.mpg": {"codec": "mpeg2video", **B_FRAMES},
    "mpeg2.ts": {"codec": "mpeg2video", **B_FRAMES},
    "mpeg2.mkv": {"codec": "mpeg2video", **B_FRAMES},
    "mpeg1.mpg": {"codec": "mpeg1video", **B_FRAMES},
    "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "prores.mov": {"codec": "prores", "pix_fmt": "yuv422p10le"},
    "wmv2.wmv": {"codec": "wmv2"},
    "ffv1.mkv": {"codec": "ffv1"},
    "animated.gif": {"codec": "gif", "pix_fmt": "rgb8"},
}


def ref(path: Path, **options: object) -> MediaRef:
    return MediaRef("video", path, options=options)


def every_frame(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


def pictures(ref: MediaRef) -> list[np.ndarray]:
    frames, _ = load_video(ref, EXACT)
    return list(frames.permute(0, 2, 3, 1).numpy())


BACKENDS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            find_spec(BACKEND_PACKAGES[name]) is None, reason=f"{name} is not installed"
        ),
    )
    for name in ("pyav", "decord")
]
REFUSED = {"decord": ("h264.ts", "mpeg2.ts", "animated.gif")}
"""What a backend gets wrong, or may."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FILES)
def test_every_frame_is_the_right_one(tmp_path: Path, name: str, backend: str) -> None:
    path = write_numbered(tmp_path / name, **FILES[name])
    truth = every_frame(path)
    header = probe_video(ref(path))
    assert (header.frames, round(header.fps, 3)) == (len(truth), 25)
    last = len(truth) - 1
    budget = replace(EXACT, backend=backend)
    if name in REFUSED.get(backend, ()):
        with pytest.raises(ValueError, match=rf"{name}: {backend} .* data.video.backend to pyav"):
            load_video(ref(path), budget)
        return
    for wishes, ends in (
        ({}, (0, last)),
        ({"nframes": 30}, (0, last)),
        ({"start": 1.0, "end": 1.6}, (25, 40)),
    ):
        frames, metadata = load_video(ref(path, **wishes), budget)
        assert metadata.video_backend == backend
        indices = metadata.frames_indices
        assert (indices[0], indices[-1]) == ends
        for index, frame in zip(indices, frames.permute(0, 2, 3, 1).numpy(), strict=True):
            assert np.array_equal(frame, truth[index])
            assert number_in(frame) == index


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv", "vfr.webm"])
def test_times_are_those_of_the_timestamps(tmp_path: Path, name: str) -> None:
    codec = "libvpx-vp9" if name.endswith("webm") else "libx264"
    path = write_numbered(tmp_path / name, codec, times=SLOWING)
    header = probe_video(ref(path))
    assert header.frames == 60
    assert header.frames / header.fps == pytest.approx(SLOWING[-1], rel=0.02)
    for wishes, first, last in (({}, 0.0, SLOWING[-1]), ({"start": 3.0, "end": 5.5}, 3.0, 5.5)):
        frames, metadata = load_video(ref(path, nframes=8, **wishes), EXACT)
        shown_at = [index / metadata.fps for index in metadata.frames_indices]
        assert shown_at[0] == pytest.approx(first, abs=0.1)
        assert shown_at[-1] == pytest.approx(last, abs=0.1)
        assert np.diff(shown_at) == pytest.approx((last - first) / 7, abs=0.11)
        for time, frame in zip(shown_at, frames.permute(0, 2, 3, 1).numpy(), strict=True):
            on_display = max(i for i, t in enumerate(SLOWING) if t <= time + 2e-3)
            assert number_in(frame) == on_display


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv"])
def test_a_long_pause_is_shown_for_as_long_as_it_lasts(tmp_path: Path, name: str) -> None:
    """A recording of a screen writes a frame when something changes."""
    path = write_numbered(tmp_path / name, times=[0, 0.5, 9.0, 9.5, 10.0, 10.5, 11.0, 11.5])
    assert [number_in(p) for p in pictures(ref(path, nframes=8))] == [0, 1, 1, 1, 1, 1, 3, 7]


def cut_without_decoding(source: Path, output: Path, begin: float) -> Path:
    """As ``ffmpeg -ss BEGIN -c copy``: from the key frame before, hidden by an edit list."""
    with (
        av.open(str(source)) as read,
        av.open(str(output), "w", options={"avoid_negative_ts": "disabled"}) as write,
    ):
        stream = read.streams.video[0]
        copy = write.add_stream_from_template(stream)
        offset = round(begin / stream.time_base)
        read.seek(offset, stream=stream)
        for packet in read.demux(stream):
            if packet.dts is not None:
                packet.pts, packet.dts = packet.pts - offset, packet.dts - offset
                packet.stream = copy
                write.mux(packet)
    return output


def test_what_an_edit_list_hides_is_not_counted(tmp_path: Path) -> None:
    whole = write_numbered(tmp_path / "whole.mp4", gop_size=30)
    cut = cut_without_decoding(whole, tmp_path / "cut.mp4", begin=1.48)
    header = probe_video(ref(cut))
    assert header.frames == len(every_frame(cut)) == 60 - 37
    with av.open(str(cut)) as container:  # what others count
        assert container.streams.video[0].frames > header.frames
    assert [number_in(p) for p in pictures(ref(cut, nframes=22))][::21] == [37, 59]
    assert check_video(ref(cut)) == header


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_gives_what_an_edit_list_leaves_or_refuses_it(
    tmp_path: Path, backend: str
) -> None:
    whole = write_numbered(tmp_path / "whole.mp4", gop_size=30)
    cut = cut_without_decoding(whole, tmp_path / "cut.mp4", begin=1.48)
    budget = replace(EXACT, backend=backend)
    if backend == "decord":
        with pytest.raises(ValueError, match="decord counts 28 frames where 23 are shown"):
            load_video(ref(cut), budget)
        return
    frames, _ = load_video(ref(cut, nframes=22), budget)
    assert [number_in(p) for p in frames.permute(0, 2, 3, 1).numpy()][::21] == [37, 59]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_gives_the_colours_that_pyav_gives(tmp_path: Path, backend: str) -> None:
    """Each has an FFmpeg of its own; of more than 8 bits they round otherwise."""
    for codec, pix_fmt, apart in (("libx264", "yuv420p", 0), ("libx265", "yuv420p10le", 32)):
        path = tmp_path / f"{codec}.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=25, options={"x265-params": "log-level=none"})
            stream.width, stream.height, stream.pix_fmt = 224, 56, pix_fmt
            for seed in range(12):
                picture = av.VideoFrame.from_ndarray(noise(224, 56, seed), format="rgb24")
                container.mux(stream.encode(picture))
            container.mux(stream.encode())
        frames, metadata = load_video(ref(path), replace(EXACT, backend=backend))
        truth = [every_frame(path)[index] for index in metadata.frames_indices]
        found = frames.permute(0, 2, 3, 1).numpy().astype(int)
        assert np.abs(found - np.stack(truth)).max() <= apart


def test_a_backend_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKEND_PACKAGES, "decord", "no_such_package")
    with pytest.raises(ValueError, match=r"backend=decord: .* `pip install no_such_package`"):
        check_backend("decord")
    for name in ("auto", "pyav"):
        check_backend(name)


def test_a_backend_without_its_libraries_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "linked.py").write_text("raise OSError('libnvrtc.so.13: cannot open\\nmore')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKEND_PACKAGES, "decord", "linked")
    with pytest.raises(ValueError, match=r"linked cannot be loaded \(libnvrtc.so.13: cannot op"):
        check_backend("decord")


def test_times_count_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    """A transport stream begins at any time, and a video may begin after its sound."""
    stream = write_numbered(tmp_path / "late.ts")
    with av.open(str(stream)) as container:
        assert container.start_time > 0
    assert probe_video(ref(stream)).begin == 0
    late = write_numbered(tmp_path / "late.mkv", times=[1 + i / 25 for i in range(60)])
    with_sound = tmp_path / "sound.mkv"
    add_silence(late, with_sound)
    assert probe_video(ref(with_sound)).begin == pytest.approx(1.0)
    shown = [number_in(p) for p in pictures(ref(with_sound, start=1.4, end=2.0, nframes=2))]
    assert shown == [10, 25]
    with pytest.raises(ValueError, match="no two frames between"):
        load_video(ref(with_sound, start=0.0, end=0.9), EXACT)


def add_silence(source: Path, output: Path) -> None:
    with av.open(str(source)) as read, av.open(str(output), "w") as write:
        sound = write.add_stream("pcm_s16le", rate=8000, layout="mono")
        copy = write.add_stream_from_template(read.streams.video[0])
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000 * 3), np.int16), layout="mono")
        silence.sample_rate, silence.pts = 8000, 0
        write.mux(sound.encode(silence))
        for packet in read.demux(video=0):
            if packet.size:
                packet.stream = copy
                write.mux(packet)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_phones_are_held_in_any_way(tmp_path: Path, rotation: int, backend: str) -> None:
    path = write_numbered(tmp_path / "phone.mp4", rotation=rotation)
    stored = every_frame(path)
    header = probe_video(ref(path))
    assert (header.width, header.height) == ((56, 224) if rotation % 180 else (224, 56))
    frames, metadata = load_video(ref(path, nframes=4), replace(EXACT, backend=backend))
    for index, frame in zip(metadata.frames_indices, frames.permute(0, 2, 3, 1), strict=True):
        assert np.array_equal(frame, np.rot90(stored[index], k=rotation // 90))


def test_a_file_without_a_second_frame_says_so(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "one.mp4", times=[0.0])
    with pytest.raises(ValueError, match=r"a single frame and a video needs two.* as an image"):
        load_video(ref(path), EXACT)


@pytest.mark.parametrize("codec", ["libx264", "libvpx-vp9"])
def test_a_tail_that_was_cut_off_shows_when_everything_is_decoded(
    tmp_path: Path, codec: str
) -> None:
    """The header stands in front of the pictures, and no more than the last one is incomplete."""
    path = tmp_path / "cut.mp4"
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 224, 56, "yuv420p"
        for number in range(60):
            picture = noise(224, 56, number)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    whole = check_video(ref(path))
    data = path.read_bytes()
    path.write_bytes(data[:-200])
    assert probe_video(ref(path)) == whole
    for look in (check_video, load_video):
        with pytest.raises(ValueError, match=r"cut\.mp4"):
            look(ref(path))
    load_video(ref(path, end=1.0), EXACT)  # what comes before is whole


def test_damage_spreads_to_the_next_key_frame(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "hit.mp4", "mpeg4", gop_size=20)
    sizes = packet_sizes(path)
    hit = sum(sizes[:25]) + path.read_bytes().index(b"mdat") + 4
    data = bytearray(path.read_bytes())
    data[hit + 8 : hit + sizes[25] - 8] = b"\xff" * (sizes[25] - 16)
    path.write_bytes(data)
    assert [number_in(p) for p in pictures(ref(path, end=0.9, nframes=2))] == [0, 22]
    assert [number_in(p) for p in pictures(ref(path, start=1.6, nframes=2))] == [40, 59]
    with pytest.raises(ValueError, match=r"frame 3[0-9] is damaged"):
        load_video(ref(path, start=1.2, end=1.5, nframes=2), EXACT)


def packet_sizes(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        return [packet.size for packet in container.demux(video=0) if packet.size]


def test_ffmpeg_turns_it_the_same_way(tmp_path: Path) -> None:
    try:
        subprocess.run(["ffmpeg", "-version"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no ffmpeg here")
    path = write_numbered(tmp_path / "phone.mp4", rotation=90)
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-frames:v", "1", "-f", "rawvideo"]
    raw = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], check=True, capture_output=True)
    shown = np.frombuffer(raw.stdout, np.uint8).reshape(224, 56, 3)
    ours = pictures(ref(path, nframes=2))[0]
    assert np.abs(shown.astype(int) - ours).max() < 8  # another version of swscale


MEMORY = """
import resource, sys
from mmr1.vision.video_decoder import decode

for count in map(int, sys.argv[2:]):
    request = {"path": sys.argv[1], "indices": [*range(count)], "size": (84, 28), "backend": "auto"}
    assert decode(request)[1].shape[0] == count
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_each_frame_is_resized_before_the_next_is_decoded(tmp_path: Path) -> None:
    """Forty frames of 1280 x 720 are 105 MiB, and half of that as the decoder has them."""
    path = write_video(tmp_path / "large.mp4", 40, 1280, 720, codec="mpeg4")
    command = [sys.executable, "-c", MEMORY, str(path), "4", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    few, many = (int(line) for line in done.stdout.split())  # KiB
    assert many - few < 10 * 1280 * 720 * 3 / 1024
