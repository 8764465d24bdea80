"""The cache on a disk: whole entries, a bound, several writers, and what makes an entry stale."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmr1.config import Config, DataConfig
from mmr1.files import DRAFT
from mmr1.types import MediaRef
from mmr1.vision.build import checked_media, media_cache
from mmr1.vision.disk_cache import DiskCache, preparer, processor_digest
from mmr1.vision.families.loading import load_family
from tests.faults import faults_told
from tests.vision.media import write_video

BIG = 1 << 40


def key(number: int) -> str:
    return sha256(str(number).encode()).hexdigest()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*.npz"))


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(3, 5)[:, ::2], torch.arange(6, dtype=torch.uint8).view(2, 3), torch.zeros(0, 4)],
    ids=["strided", "bytes", "empty"],
)
def test_an_entry_comes_back_as_it_was(tensor, tmp_path):
    disk = DiskCache(tmp_path, BIG)
    assert disk.get(key(0)) is None
    disk.put(key(0), tensor, {"said": "é", "sizes": [1, 2]})
    read, facts = DiskCache(tmp_path, BIG).get(key(0))
    assert facts == {"said": "é", "sizes": [1, 2]}
    assert read.dtype == tensor.dtype
    assert torch.equal(read, tensor)


@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "other bytes", "other name"])
def test_a_damaged_entry_is_made_anew(damage, tmp_path, caplog):
    disk = DiskCache(tmp_path, BIG)
    disk.put(key(0), torch.ones(100), {})
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    spoilt = {
        "cut": whole[:-8],
        "empty": b"",
        "zeros": bytes(len(whole)),
        "other bytes": whole.replace(b"\x80\x3f", b"\x81\x3f", 1),
        "other name": whole.replace(b"tensor", b"sensor"),
    }
    assert spoilt[damage] != whole
    file.write_bytes(spoilt[damage])
    assert disk.get(key(0)) is None
    assert "is made anew" in caplog.text
    disk.put(key(0), torch.ones(100), {})
    assert file.read_bytes() == whole


def test_a_file_of_which_any_byte_changed_gives_no_other_entry(tmp_path):
    disk = DiskCache(tmp_path, BIG)
    disk.put(key(0), torch.ones(9), {"grid": [1, 3, 3]})
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        if (entry := disk.get(key(0))) is not None:
            assert torch.equal(entry[0], torch.ones(9))
            assert entry[1] == {"grid": [1, 3, 3]}


def test_the_least_recently_used_go_first(tmp_path):
    size = 4096 + 800  # with the headers
    disk = DiskCache(tmp_path, 10 * size + 1000)
    for number in range(10):
        disk.put(key(number), torch.full((1024,), float(number)), {})
        os.utime(disk._path(key(number)), (number, number))
    assert disk.get(key(0)) is not None  # now it is the newest
    disk.put(key(10), torch.zeros(1024), {})
    left = [n for n in range(11) if disk._path(key(n)).exists()]
    assert left == [0, 3, 4, 5, 6, 7, 8, 9, 10]  # down to nine tenths
    disk.put(key(11), torch.zeros(20_000), {})  # larger than all of it
    assert not disk._path(key(11)).exists()
    smaller = DiskCache(tmp_path, 5 * size)
    smaller.put(key(12), torch.zeros(1), {})
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 4.5 * size


def test_nothing_of_others_is_removed(tmp_path):
    theirs = [tmp_path / "model.npz", tmp_path / "ab/model.npz", tmp_path / "cd"]
    (tmp_path / "ab").mkdir()
    for file in theirs:
        file.write_bytes(b"x" * 10_000)
    disk = DiskCache(tmp_path, 3000)
    for number in range(9):
        disk.put(key(number), torch.zeros(256), {})
    assert all(file.exists() for file in theirs)
    assert len(files(tmp_path)) - 1 <= 3


def test_a_draft_that_a_kill_left_goes_with_the_oldest(tmp_path):
    disk = DiskCache(tmp_path, 3000)
    (tmp_path / "ab").mkdir()
    old, new = (tmp_path / "ab" / f".{name}{DRAFT}" for name in ("old", "new"))
    old.write_bytes(b"half" * 500)
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    disk.put(key(0), torch.zeros(256), {})
    assert (old.exists(), new.exists()) == (False, True)


def _write(folder: Path, seed: int, count: int) -> None:
    torch.set_num_threads(1)
    disk, draw = DiskCache(folder, 400_000), np.random.default_rng(seed)
    for number in draw.integers(0, 30, count).tolist():
        if (entry := disk.get(key(number))) is not None:
            assert torch.equal(entry[0], torch.full((5000,), float(number)))
        disk.put(key(number), torch.full((5000,), float(number)), {})
    if seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def test_several_processes_write_the_same_entries(tmp_path):
    """30 entries of 20 kB in 400 kB, so that some are removed while others read them."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(tmp_path, seed, 150)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL, 0, 0, 0]
    left = files(tmp_path)
    assert sum(file.stat().st_size for file in left) <= 400_000 * (1 + 4 / 64) + 4 * 20_500
    disk = DiskCache(tmp_path, BIG)
    assert all(disk.get(file.stem) is not None for file in left)
    assert not list(tmp_path.rglob(f"*{DRAFT}"))


def test_a_full_disk_is_said_once_and_what_is_there_is_read(tmp_path):
    """The limit of a file's size is the full disk that any user can have."""
    disk = DiskCache(tmp_path, BIG)
    disk.put(key(0), torch.zeros(10), {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        with faults_told() as told:
            for number in range(1, 4):
                disk.put(key(number), torch.zeros(5000), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert told.counts() == {"media/cache_not_written": 1}
    assert disk.get(key(0)) is not None
    assert len(files(tmp_path)) == 1


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with faults_told() as told:
        disk = DiskCache(tmp_path / "file/cache", BIG)
        disk.put(key(0), torch.zeros(1), {})
    assert told.counts() == {"media/cache_not_written": 1}
    assert disk.get(key(0)) is None


@pytest.fixture
def pictures(tmp_path) -> list[MediaRef]:
    draw = np.random.default_rng(0)
    for number in range(3):
        pixels = draw.integers(0, 255, (70, 98, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    clip = write_video(tmp_path / "bar.mp4", 8, 56, 56, fps=2)
    images = [MediaRef("image", tmp_path / f"{number}.png") for number in range(3)]
    return [*images, MediaRef("video", clip, options={"fps": 2.0})]


def data(tmp_path: Path) -> DataConfig:
    return DataConfig(media_cache={"dir": str(tmp_path / "cache")}, num_workers=0)


def test_a_second_run_prepares_nothing(tiny_model, pictures, tmp_path, monkeypatch):
    family, own = load_family(str(tiny_model)), data(tmp_path)
    fresh = [family.prepare_media(medium) for medium in pictures]
    first = preparer(family, own)
    for medium, wanted in zip(pictures, fresh, strict=True):
        assert torch.equal(first(medium).patches, wanted.patches)
    monkeypatch.setattr(type(family), "decode_media", None)  # calling it would fail
    second = preparer(load_family(str(tiny_model)), own)
    for medium, wanted in zip(pictures, fresh, strict=True):
        found = second(medium)
        assert torch.equal(found.patches, wanted.patches)
        assert replace(found, stored=wanted.patches) == wanted


def test_the_driver_of_a_cluster_prepares_for_the_others(
    tiny_model, pictures, tmp_path, monkeypatch
):
    family = load_family(str(tiny_model))
    config = Config(model={"path": str(tiny_model)}, data=data(tmp_path), resources={"ranks": 2})
    config = config.changed({"data.num_workers": 0})
    driver = checked_media(family, config)
    sizes = [driver[medium] for medium in pictures]
    assert [size.prepared for size in sizes] == [None] * 4
    monkeypatch.setattr(type(family), "decode_media", None)
    rank = media_cache(family, config)
    for medium, size in zip(pictures, sizes, strict=True):
        assert (rank[medium].grid, rank[medium].times) == (size.grid, size.times)


def test_a_view_that_is_drawn_is_not_kept(tiny_model, pictures, tmp_path):
    family, own = load_family(str(tiny_model)), data(tmp_path)
    noisy = replace(pictures[0], options={"noise": 0.5, "noise_seed": 3})
    preparer(family, own)(noisy)
    preparer(family, own)(replace(pictures[3], options={"shuffle": 3}))
    assert files(tmp_path / "cache") == []
    preparer(family, own)(replace(pictures[0], options={"blank": 1}))
    assert len(files(tmp_path / "cache")) == 1


def test_another_processor_has_entries_of_its_own(tiny_model, pictures, tmp_path):
    family, own = load_family(str(tiny_model)), data(tmp_path)
    other = load_family(str(tiny_model))
    other.processor.image_processor.image_mean = [0.1, 0.2, 0.3]
    smaller = load_family(str(tiny_model), image_max_pixels=5000)
    digests = [processor_digest(f) for f in (family, other, smaller, load_family(str(tiny_model)))]
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]
    for reads in (family, other, smaller):
        found = preparer(reads, own)(pictures[0])
        assert torch.equal(found.patches, reads.prepare_media(pictures[0]).patches)


@pytest.mark.slow
def test_a_hundred_thousand_entries(tmp_path):
    """A process holds none of them, and looks the folder through a few dozen times."""
    looks = 0
    disk = DiskCache(tmp_path, 100_000 * 1300)
    remove = disk._remove_oldest

    def counting() -> None:
        nonlocal looks
        looks += 1
        remove()

    disk._remove_oldest = counting
    row = torch.zeros(128)
    for number in range(100_000):
        disk.put(key(number), row, {})
    assert looks <= 66
    size = sum(file.stat().st_size for file in files(tmp_path))
    assert size <= 100_000 * 1300 * (1 + 1 / 64)
    assert disk.get(key(99_999)) is not None
