"""Record files in pieces: every line once, errors with their line, any number of processes."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from datasets_prep.conversion import convert
from datasets_prep.outputs import refuse_repeated_ids
from datasets_prep.record_files import map_pieces
from datasets_prep.select import carry_kept, keep, rule
from datasets_prep.split import group_of_record, keys_of, parts, split
from datasets_prep.validate import check_part, validate
from mmr1.data.lines import Piece, line_numbers, pieces
from mmr1.data.record import read_records, write_records
from mmr1.machine import cores
from mmr1.parallel import in_order, one_pool
from mmr1.types import MediaRef, Message, Sample, TextPart
from tests.vision.media import encoded, noise

lines = st.lists(st.sampled_from([b"", b" ", b"{}", b'{"a": 1}', "ä€".encode(), b"\r"]))


@given(lines, st.booleans(), st.integers(1, 12))
def test_pieces_hold_every_line_once(tmp_path_factory, content, ends: bool, size: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "f"
    text = b"\n".join(content) + (b"\n" if ends else b"")
    path.write_bytes(text)
    cut = list(pieces([path], size))
    assert sum(piece.size for piece in cut) == len(text)
    found = [item for piece in cut for item in piece.lines()]
    assert [line for _, line in found] == [line for line in text.split(b"\n") if line.strip()]
    numbers = line_numbers(path, [position for position, _ in found])
    expected = [n for n, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    assert [numbers[position] for position, _ in found] == expected


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def test_processes_give_the_results_in_order() -> None:
    here = list(in_order(square, ((n,) for n in range(20)), workers=1))
    there = list(in_order(square, ((n,) for n in range(20)), workers=2, alone_s=0))
    assert [value for value, _ in here] == [value for value, _ in there]
    assert {pid for _, pid in here} == {os.getpid()}
    assert os.getpid() not in {pid for _, pid in there}


def test_one_pool_serves_a_whole_block() -> None:
    def processes() -> set[int]:
        jobs = ((n,) for n in range(40))
        return {pid for _, pid in in_order(square, jobs, workers=2, alone_s=0)}

    with one_pool():
        assert len(processes() | processes() | processes()) <= 2
    assert len(processes() | processes() | processes()) > 2


def test_an_error_leaves_the_pool_usable() -> None:
    with one_pool():
        with pytest.raises(TypeError):
            list(in_order(square, ((n,) for n in (1, None, 2)), workers=2, alone_s=0))
        assert [v for v, _ in in_order(square, ((n,) for n in (1, 2)), workers=2)] == [1, 4]


def test_jobs_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def jobs():
        for number in range(100):
            taken.append(number)
            yield (number,)

    results = in_order(square, jobs(), workers=2, alone_s=0)
    next(results)
    results.close()
    assert len(taken) < 10


keys = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=30)


@given(keys)
def test_groups_are_those_of_a_plain_search(of_record: list[list[int]]) -> None:
    found = group_of_record(
        np.array([k for ks in of_record for k in ks], np.uint64),
        np.array([len(ks) for ks in of_record], np.uint32),
    )
    groups: list[set[int]] = [set(ks) for ks in of_record]
    for _ in of_record:  # merge until nothing changes
        groups = [set().union(*(g for g in groups if g & own)) for own in groups]
    order: list[set[int]] = []
    for group in groups:
        if group not in order:
            order.append(group)
    assert found.tolist() == [order.index(group) for group in groups]


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(0, 5))
def test_parts_are_whole_groups_near_their_shares(of_record: list[int], seed: int) -> None:
    groups = np.unique(of_record, return_inverse=True)[1]
    part = parts(groups, [0.7, 0.3], seed)
    assert len({(g, p) for g, p in zip(groups, part, strict=True)}) == len(set(of_record))
    largest = max(Counter(of_record).values())
    assert abs((part == 0).sum() - 0.7 * len(of_record)) <= largest


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """40 records about 10 pictures, some of them about two."""
    (tmp_path / "in").mkdir()
    samples = []
    for number in range(40):
        refs = []
        for picture in {number // 4, number // 4 + (number % 8 == 3)}:
            path = tmp_path / f"in/{picture}.png"
            path.write_bytes(encoded(Image.fromarray(noise(30, 30, picture))))
            refs.append(MediaRef("image", path, None, (30, 30)))
        message = Message("user", (*refs, TextPart(f"Question {number}?")))
        samples.append(Sample(f"s{number}", (message,), str(number), "math"))
    write_records(tmp_path / "in/records.jsonl", samples)
    return tmp_path / "in/records.jsonl"


def test_work_on_pieces_is_work_on_the_file(records: Path, tmp_path: Path) -> None:
    """What a piece gives does not depend on where the file is cut."""
    whole = Piece(records, 0, records.stat().st_size)
    cut = list(pieces([records], 1000))
    assert len(cut) > 5
    assert keys_of(whole).media.tolist() == [m for p in cut for m in keys_of(p).media]
    assert check_part(whole).ids.tolist() == [i for p in cut for i in check_part(p).ids]
    kept = [carry_kept(piece, "answer | int > 20", tmp_path / "out") for piece in (whole, *cut)]
    assert kept[0][0] == b"".join(lines for lines, _, _ in kept[1:])


def test_split_writes_all_files_or_none(records: Path, tmp_path: Path) -> None:
    """It wrote train.jsonl first, and then refused to continue because of it."""
    text = records.read_text()
    records.write_text(text + "{broken\n")
    for output in (tmp_path / "new", tmp_path):
        with pytest.raises(ValueError, match=r"records\.jsonl:41: not valid JSON"):
            split(records, {"train": 0.5, "eval": 0.5}, output, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    records.write_text(text)
    sizes = split(records, {"train": 0.5, "eval": 0.5}, tmp_path / "new", 0)
    assert sum(sizes.values()) == 40
    assert all(len(read_records(path)) == count for path, count in sizes.items())


def test_media_are_brought_again_where_they_are_gone(records: Path, tmp_path: Path) -> None:
    """A process remembers what media are, and not that it brought them somewhere."""
    for _ in range(2):
        keep(records, tmp_path / "out/kept.jsonl", "true")
        assert validate(tmp_path / "out") == (40, [])
        shutil.rmtree(tmp_path / "out")
    for _ in range(2):
        source = records.with_name("rows.jsonl")
        source.write_text('{"problem": "<image>?", "images": ["0.png"], "answer": "1"}\n' * 3)
        convert("easyr1", source, tmp_path / "out", workers=1)
        assert validate(tmp_path / "out") == (3, [])
        shutil.rmtree(tmp_path / "out")


def test_a_split_beside_its_media_copies_none(records: Path) -> None:
    split(records, {"train": 0.5, "eval": 0.5}, records.parent, 0)
    for name in ("train", "eval"):
        for sample in read_records(records.parent / f"{name}.jsonl"):
            assert all(m.path.parent == records.parent for m in sample.media)
    assert not (records.parent / "media").exists()


def test_the_same_clip_is_one_medium_whatever_its_options(tmp_path: Path) -> None:
    """Two questions about two moments of a video are about one video."""
    (tmp_path / "v.mp4").write_bytes(b"a video, not decoded here")
    samples = [
        Sample(f"s{n}", (Message("user", (
            MediaRef("video", tmp_path / "v.mp4", options={"start": float(n)}), TextPart("?"),
        )),))
        for n in range(10)
    ]  # fmt: skip
    write_records(tmp_path / "records.jsonl", samples)
    sizes = split(tmp_path / "records.jsonl", {"a": 0.5, "b": 0.5}, tmp_path / "out", 0)
    assert sorted(sizes.values()) == [0, 10]


def test_a_folder_of_frames_is_carried_whole(tmp_path: Path) -> None:
    """Only the list was linked, under a name that no reader knows."""
    from datasets_prep.frames import list_frames
    from mmr1.vision.videos import probe_video

    (tmp_path / "in/clip").mkdir(parents=True)
    for n in range(4):
        (tmp_path / f"in/clip/{n}.png").write_bytes(encoded(Image.fromarray(noise(60, 40, n))))
    frames = list_frames(tmp_path / "in/clip", fps=2.0)
    sample = Sample("s", (Message("user", (MediaRef("video", frames), TextPart("?"))),))
    write_records(tmp_path / "in/records.jsonl", [sample])
    keep(tmp_path / "in/records.jsonl", tmp_path / "out/kept.jsonl", "videos == 1")
    (kept,) = read_records(tmp_path / "out/kept.jsonl")
    assert probe_video(kept.media[0]).frames == 4


def test_rows_keep_their_form(records: Path, tmp_path: Path) -> None:
    """A row with tags and a list of images is not rewritten; only its paths are."""
    row = {
        "version": 1, "id": "a", "images": ["0.png"],
        "messages": [{"role": "user", "content": "<image>How many?"}], "meta": {"é": "ü"},
    }  # fmt: skip
    path = records.with_name("tags.jsonl")
    path.write_text(json.dumps(row))
    keep(path, tmp_path / "out/kept.jsonl", "true")
    (line,) = (tmp_path / "out/kept.jsonl").read_text().splitlines()
    written = json.loads(line)
    assert {**written, "images": ["0.png"]} == row
    assert read_records(tmp_path / "out/kept.jsonl")[0].media[0].read() == (
        (records.parent / "0.png").read_bytes()
    )


def test_a_rule_is_compiled_once() -> None:
    rule.cache_clear()
    for _ in range(3):
        rule("width > 3")
    assert rule.cache_info().misses == 1


def test_equal_hashes_of_different_ids_are_no_repeat(records: Path) -> None:
    hashes = keys_of(Piece(records, 0, records.stat().st_size)).ids
    hashes.append(hashes[0])  # as if another id had the hash of the first
    refuse_repeated_ids(records, [records], [hashes])


def test_repeats_far_apart_are_found(records: Path) -> None:
    text = records.read_text()
    records.write_text(text + text.splitlines()[7] + "\n")
    assert validate(records) == (
        41, [(f"{records}:41", "the id 's7' appears on line 8 already")]
    )  # fmt: skip
    with pytest.raises(ValueError, match="the id 's7' appears twice"):
        split(records, {"a": 1.0}, records.with_name("out"), 0)


def piece_size(piece: Piece) -> int:
    return piece.size


def test_a_small_file_has_pieces_for_every_core(tmp_path: Path) -> None:
    """Its records may be about large media. It was one piece, so that one core worked."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"{}\n" * 100_000)
    sizes = list(map_pieces(piece_size, [path], "measuring"))
    assert sum(sizes) == 300_000
    assert len(sizes) >= min(8 * cores(), 300_000 // (1 << 14))
