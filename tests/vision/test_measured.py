"""Media by their headers: what is known of them before, or without, their pixels."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from mmr1.config import Config
from mmr1.data.quarantine import Quarantine
from mmr1.data.sampler import MediaCheck
from mmr1.types import MediaRef, Message, Sample
from mmr1.vision import videos
from mmr1.vision.build import checked_media, family_of
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.qwen_vl import inputs
from mmr1.vision.families.tiny import new_model
from mmr1.vision.prepare import measured
from tests.vision.media import encoded, noise, write_numbered, write_video
from tests.vision.slowed_videos import SLOWING

SMALL = {"min_pixels": 784, "max_pixels": 1568}
TURNED = Image.Exif()
TURNED[0x0112] = 6


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MediaRef]:
    folder = tmp_path_factory.mktemp("media")
    pictures = {
        "png": encoded(Image.fromarray(noise(100, 60))),
        "turned": encoded(Image.fromarray(noise(200, 90)), "JPEG", exif=TURNED),
        "wide": encoded(Image.fromarray(noise(700, 30)), "WEBP"),
    }
    refs = {name: MediaRef("image", data=data) for name, data in pictures.items()}
    refs["asked small"] = MediaRef("image", data=pictures["png"], options=SMALL)
    frames = [{"path": f"{i}.png", "sha256": ""} for i in range(3)]
    for i, frame in enumerate(frames):
        data = encoded(Image.fromarray(noise(56, 28, i)))
        (folder / frame["path"]).write_bytes(data)
        frame["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "clip.frames.json").write_text(json.dumps({"fps": 2.0, "frames": frames}))
    clip = write_video(folder / "clip.mp4", 40)
    slowing = write_numbered(folder / "vfr.mp4", times=SLOWING)
    for name, path, wishes in (
        ("video", clip, {}),
        ("part", clip, {"start": 1.0, "end": 3.0}),
        ("shuffled", clip, {"nframes": 6, "shuffle": 3}),
        ("varying rate", slowing, {"nframes": 8}),
        ("part of it", slowing, {"start": 3.0, "end": 5.5}),
        ("list of frames", folder / "clip.frames.json", {}),
    ):
        refs[name] = MediaRef("video", path, options={**SMALL, **wishes})
    return refs


@pytest.mark.parametrize("options", [{}, {"image_resize": "easyr1", "num_frames": 8}], ids=str)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_header_tells_all_but_the_patches(family, options, media, tmp_path, monkeypatch):
    new_model(tmp_path, family=family)
    own = load_family(str(tmp_path), **options)
    checked = {name: own.check_media(ref) for name, ref in media.items()}
    prepared = {name: own.prepare_media(ref) for name, ref in media.items()}
    monkeypatch.setattr(inputs, "load_image", None)  # nothing is decoded from here on
    monkeypatch.setattr(inputs, "load_video", None)
    for name, ref in media.items():
        found = own.measure_media(ref)
        assert found == measured(prepared[name]) == checked[name], name
        assert (found.tokens, found.pixels) == (prepared[name].tokens, prepared[name].pixels)
        assert found.seconds_per_grid == prepared[name].seconds_per_grid


def test_a_configuration_s_sizes_frames_and_backend_reach_the_family(media, tiny_model):
    for backend, other in (("pyav", {}), ("decord", {"num_frames": 6})):
        image = {"min_pixels": 50_000, "resize": "easyr1"} if other else {}
        data = {"video": {"backend": backend, **other}, "image": image}
        family = family_of(Config(model={"path": str(tiny_model)}, data=data))
        frames, metadata = family.decode_media(media["video"])
        assert (metadata.video_backend, len(frames)) == (backend, 6 if other else 8)
        assert frames.shape[0] == len(metadata.frames_indices)
        size = family.decode_media(MediaRef("image", data=media["png"].data)).size
        assert size == ((280, 168) if other else (112, 56))


def test_parts_of_what_is_measured_are_those_of_what_is_prepared(media, tiny_model):
    family = load_family(str(tiny_model))
    prepared = family.prepare_media(media["video"])
    late = replace(family.measure_media(media["video"]), prepared=lambda: prepared)
    assert prepared.grid[0] >= 3
    for part, same in ((late.frames(1, 3), prepared.frames(1, 3)), (late, prepared)):
        assert measured(part) == measured(same)
        assert torch.equal(part.patches, same.patches)
    assert len(prepared.frames(0, 1).patches) + len(late.frames(1, 99).patches) == len(
        prepared.patches
    )


def test_the_driver_of_a_cluster_keeps_no_patches_and_finds_what_cannot_be_decoded(
    media, tiny_model, tmp_path, monkeypatch
):
    """A picture is decoded once, at an eighth of its size, and not prepared; a video likewise."""
    clip = media["video"].path
    packets = clip.read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(packets.replace(packets[len(packets) // 3 :][:200], bytes(200)))
    picture = encoded(Image.fromarray(noise(400, 300)), "JPEG")
    refs = {
        "whole": [MediaRef("image", data=picture), media["video"]],
        "cut off": [MediaRef("image", data=picture[: len(picture) // 2])],
        "damaged": [MediaRef("video", cut, options=SMALL)],
    }
    family = family_of(Config(model={"path": str(tiny_model)}))
    here = checked_media(family, Config(model={"path": str(tiny_model)}, data={"num_workers": 0}))
    asked: list[str] = []
    decode, ask = inputs.check_image, videos.ask
    monkeypatch.setattr(inputs, "load_image", None)
    monkeypatch.setattr(inputs, "check_image", lambda ref: (asked.append("image"), decode(ref))[1])

    def counted(ref, path, request, deadline):
        asked.append(request["task"])
        return ask(ref, path, request, deadline)

    monkeypatch.setattr(videos, "ask", counted)
    check = MediaCheck(here, Quarantine(0.9))
    check.quarantine.read("data", 3)
    samples = {name: Sample(name, (Message("user", tuple(r)),)) for name, r in refs.items()}
    assert {name: check.usable("data", s) for name, s in samples.items()} == {
        "whole": True,
        "cut off": False,
        "damaged": False,
    }
    for name, sample in samples.items():
        assert check.usable("data", sample) is (name == "whole")
    for ref in refs["whole"]:
        assert here[ref] == family.measure_media(ref)
        assert here[ref].tokens == family.media_tokens(ref)
    assert asked.count("image") == 2
    assert asked.count("decode") == 2
