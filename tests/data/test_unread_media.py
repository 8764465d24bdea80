"""A column with media that no form reads refuses the row; it never trains on text alone."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from datasets_prep.conversion import convert
from mmr1.config import DataConfig
from mmr1.data.sources import load_samples
from tests.data.form_rows import read, write_media, written
from tests.vision.media import write_video


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    write_media(folder)
    return folder


PATH_NAMES = (
    "img", "img_path", "imgs", "img_url", "image_file", "image_name", "imagePath", "image_list",
    "image_paths", "Image", "IMAGE", "images_path", "picture", "pictures", "pic", "photo", "figure",
    "diagram", "screenshot", "file", "file_path", "filename", "path", "media", "media_path", "url",
    "input_image", "question_image", "query_image", "image_a", "left_image", "frame", "src",
)  # fmt: skip
CLIP_NAMES = (
    "video_file", "video_url", "videoPath", "clip", "clip_path", "vid", "movie", "video_name",
    "Video", "vid_path", "mp4",
)  # fmt: skip
IDS = {
    "image_id": 1234, "imageId": "n161313", "img_id": "000000581857", "video_id": "fFjv93ACGo8",
    "videoID": "fFjv93ACGo8", "video_uid": "a0b1",
    "youtube_id": "fFjv93ACGo8",
}  # fmt: skip


def columns(root: Path) -> dict[str, dict[str, Any]]:
    """Sixty columns with media, by a name for the test."""
    picture, clip = (root / "a.png").read_bytes(), (root / "clip.mp4").read_bytes()
    text = base64.b64encode(picture).decode()
    values = {
        "jpg": picture, "content": clip, "image_bytes": picture, "b64": text,
        "image_base64": f"data:image/png;base64,{text}", "frames": ["a.png", "b.png"],
        "visual": {"bytes": picture, "path": None}, "where": {"path": "a.png", "bytes": None},
        "media_list": [{"bytes": picture, "path": None}], "files": [{"path": "clip.mp4"}],
        "extra": {"image": {"url": "gone/far.jpg"}}, "absolute": "/data/theirs/images/a.png",
    }  # fmt: skip
    return {
        **{name: {name: "a.png"} for name in PATH_NAMES},
        **{name: {name: "clip.mp4"} for name in CLIP_NAMES},
        **{name: {name: value} for name, value in {**IDS, **values}.items()},
    }


SPELLINGS = (
    *PATH_NAMES, *CLIP_NAMES, *IDS, "jpg", "content", "image_bytes", "b64", "image_base64",
    "frames", "visual", "where", "media_list", "files", "extra", "absolute",
)  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    "row",
    [
        {"question": "How many?", "answer": "3"},
        {"prompt": "How many?", "reward_model": {"ground_truth": "3"}},
        {"messages": [{"role": "user", "content": "How many?"}], "answer": "3"},
    ],
    ids=["vqa", "verl", "sharegpt"],
)
def test_no_column_with_media_is_silent(root: Path, spelling: str, row: dict[str, Any]) -> None:
    (name,) = columns(root)[spelling]
    with pytest.raises(ValueError, match=f"column '{name}.*(image_key|--map)"):
        read({**row, **columns(root)[spelling]}, root)


def test_media_that_were_read_may_stand_in_more_columns(root: Path) -> None:
    """A second column with the same pictures, a file that is not there, a name of the file."""
    picture = (root / "a.png").read_bytes()
    row = {"question": "How many?", "answer": "3", "image": {"bytes": picture, "path": "a.png"}}
    for more in (
        {"image_path": "a.png"}, {"file_name": "a.png"}, {"img_path": "images/gone.png"},
        {"image_id": 17}, {"source_url": "https://x.org/c.png"}, {"decoded_image": picture},
        {"copy": picture}, {"note": "a.png"}, {"caption": "See b.png"}, {"image_caption": "A cat"},
    ):  # fmt: skip
        assert written(read({**row, **more}, root)) == ["user: [bytes]How many?"]


@pytest.mark.parametrize(
    "more",
    [
        {"mask": "b.png"}, {"image_path": ["a.png", "b.png"]}, {"depth": {"bytes": b"\x89PNG.."}},
        {"clip": "clip.mp4"}, {"frames": ["b.png", "c.png"]},
    ],
)  # fmt: skip
def test_another_picture_beside_the_one_that_is_read(root: Path, more: dict[str, Any]) -> None:
    row = {"question": "How many?", "answer": "3", "image": "a.png", **more}
    with pytest.raises(
        ValueError, match=rf"the column '{next(iter(more))}' holds an? .* or remove"
    ):
        read(row, root)
    with pytest.raises(ValueError, match=r"the column 'image' holds an image"):
        read({"prompt": "?", "reward_model": {"ground_truth": "3"}, "image": "a.png"}, root)


PARTS = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "Q?"}]
ASKED = {"problem": "Q?", "answer": "3"}
TWO_MEDIA: dict[str, dict[str, Any]] = {
    "images": {**ASKED, "image": "a.png", "images": ["b.png"]},
    "image_path": {**ASKED, "image": "a.png", "image_path": "b.png"},
    "one name in two folders": {**ASKED, "image": "a.png", "image_path": "more/a.png"},
    "image_urls": {**ASKED, "image": "a.png", "image_urls": ["b.png"]},
    "videos": {**ASKED, "video": "clip.mp4", "videos": ["more/clip.mp4"]},
    "decoded_image": {**ASKED, "image": "a.png", "decoded_image": "bytes of b.png"},
    "image_2": {**ASKED, "images": ["a.png"], "image_2": "b.png"},
    "gone": {**ASKED, "image": "a.png", "image_path": "gone.png"},
    "conversations": {
        "conversations": [{"from": "human", "value": PARTS}, {"from": "gpt", "value": "3"}],
        "image": "b.png",
    },
    "message": {
        "message": json.dumps([{"role": "user", "content": PARTS}]), "answer": "3",
        "image_urls": ["b.png"],
    },
    "verl, in a part": {
        "prompt": [{"role": "user", "content": PARTS}], "images": ["b.png"],
        "reward_model": {"ground_truth": "3"},
    },
    "verl, beside": {
        "prompt": [{"role": "user", "content": "<image>Q?"}], "images": ["a.png"],
        "image": "b.png", "reward_model": {"ground_truth": "3"},
    },
    "moment": {
        "video": "clip.mp4", "sentence": "x", "timestamp": [0.2, 0.8], "duration": 1.0,
        "image": "a.png",
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", TWO_MEDIA)
def test_each_medium_is_used_or_named(tmp_path: Path, variant: str) -> None:
    write_media(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more/a.png").write_bytes((tmp_path / "b.png").read_bytes())
    write_video(tmp_path / "more/clip.mp4", frames=10)
    row = dict(TWO_MEDIA[variant])
    if "decoded_image" in row:
        row["decoded_image"] = {"bytes": (tmp_path / "b.png").read_bytes(), "path": None}
    with pytest.raises(ValueError, match=r"the column '\w+' holds an? .* this one would be lost"):
        read(row, tmp_path)


def test_one_picture_in_two_files_is_one(tmp_path: Path) -> None:
    write_media(tmp_path)
    picture = Image.open(tmp_path / "a.png")
    picture.save(tmp_path / "anew.png", compress_level=0)
    for more in ({"image_path": "anew.png"}, {"decoded_image": picture}):
        assert len(read({**ASKED, "image": "a.png", **more}, tmp_path).media) == 1


def test_texts_and_numbers_are_no_media(root: Path) -> None:
    row = {
        "question": "How many?", "answer": "3", "image_caption": "A cat", "video_duration": 3,
        "n_images": 0, "image": None, "image_id": "", "videos": [], "page": "7.5", "url": "x.org",
        "text": "Look at a.png", "token": "QUJD" * 40, "has_image": False, "images_seen": 3,
        "blob": b"PK\x03\x04", "extra": {"index": 3, "split": "train"},
    }  # fmt: skip
    assert written(read(row, root)) == ["user: How many?"]


def test_numbered_pictures_after_the_first(root: Path) -> None:
    row = {"question": "Same?", "answer": "no", "image": "a.png", "image_2": "b.png"}
    assert written(read(row, root)) == ["user: [a.png][b.png]Same?"]


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("folder", [".", "train"])
def test_an_image_folder_is_read(tmp_path: Path, kind: str, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    write_media(tmp_path / folder)
    row = {"file_name": "a.png", "question": "How many?", "answer": "3 cm"}
    if kind == "jsonl":
        write_rows(tmp_path / folder / "metadata.jsonl", row)
    else:
        (tmp_path / folder / "metadata.csv").write_text(
            f"{','.join(row)}\n{','.join(row.values())}\n"
        )
    (sample,) = load_samples(tmp_path)
    assert (written(sample), sample.answer) == (["user: [a.png]How many?"], "3 cm")
    clip = write_rows(tmp_path / "clips.jsonl", {**row, "file_name": "gone.mp4"})
    with pytest.raises(ValueError, match=r"media file 'gone.mp4' does not exist"):
        load_samples(clip)


def test_parquet_shaped_as_video_mme_and_gqa(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    video_mme = {
        "video_id": "001", "duration": "short", "domain": "Knowledge", "videoID": "fFjv93ACGo8",
        "url": "https://www.youtube.com/watch?v=fFjv93ACGo8", "question_id": "001-1",
        "question": "When?", "options": ["A. 1", "B. 2"], "answer": "B",
    }  # fmt: skip
    gqa = {
        "id": "1",
        "imageId": "n161313",
        "question": "Is it?",
        "answer": "no",
        "isBalanced": True,
    }
    for name, row, column in (("mme", video_mme, "video_id"), ("gqa", gqa, "imageId")):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist([row]), path)
        with pytest.raises(ValueError, match=rf"{name}.parquet\[0\]: the column '{column}' names"):
            load_samples(path)


SAMPLE = Path(__file__).parents[3] / "shared/samples/charades_sta/timer1_tvgbench_subset.json"


@pytest.mark.skipif(not SAMPLE.is_file(), reason="the samples are not here")
def test_moments_are_no_mathematics(root: Path) -> None:
    rows = json.loads(SAMPLE.read_text())
    row = {**rows[0], "path": "clip.mp4"}
    sample = read(row, root)
    assert (sample.task, sample.answer) == ("tiou", [13.4, 28.1])
    assert [m.kind for m in sample.media] == ["video"]
    with pytest.raises(ValueError, match=r"media file .* does not exist"):
        load_samples(SAMPLE)


def test_mapped_columns_leave_no_picture_behind(tmp_path: Path) -> None:
    write_media(tmp_path)
    row = {"question": "How many?", "answer": "3", "image": "a.png"}
    path = write_rows(tmp_path / "rows.jsonl", row)
    columns = {"question": "question", "answer": "answer"}
    with pytest.raises(ValueError, match=r"column 'image' holds an image .*--map .*image=image"):
        convert("rows", path, tmp_path / "out", workers=1, columns=columns)
    convert("rows", path, tmp_path / "both", workers=1, columns={**columns, "image": "image"})
    (sample,) = load_samples(tmp_path / "both")
    assert len(sample.media) == 1


@pytest.mark.parametrize("problem", ["How many?", "<image>How many?"])
def test_a_picture_without_a_placeholder_comes_first(tmp_path: Path, problem: str) -> None:
    write_media(tmp_path)
    row = {"q": problem, "answer": "3", "pic": "a.png", "mask": "b.png"}
    path = write_rows(tmp_path / "rows.jsonl", row)
    (sample,) = load_samples(path, DataConfig(format={"prompt_key": "q", "image_key": "pic"}))
    assert written(sample) == ["user: [a.png]How many?"]
    assert written(read({"problem": problem, "answer": "3", "images": ["a.png"]}, tmp_path)) == [
        "user: [a.png]How many?"
    ]
