"""Canonical records: what is read is what was written, and every fault names its place."""

import base64
import io
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmr1.config import DataConfig
from mmr1.data.record import decode, encode, parse_json, read_records, write_records
from mmr1.data.schema import json_schema
from mmr1.data.sources import load_samples
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.paths import resolve_media
from tests.paths import REPOSITORY


def png(colour: str = "red", size: tuple[int, int] = (40, 30)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(png())
    (tmp_path / "images/b.png").write_bytes(png("blue"))
    return tmp_path


def row(**changes: object) -> dict:
    return {
        "version": 1,
        "id": "x",
        "messages": [{"role": "user", "content": "<image>What is it?"}],
        "images": ["images/a.png"],
        "answer": "4",
        **changes,
    }


def write(folder: Path, *rows: object) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
    return path


def test_tags_take_the_media_in_order(folder: Path) -> None:
    content = "first <image>, then <image 2>!"
    path = write(
        folder,
        row(
            messages=[{"role": "user", "content": content}],
            images=["images/b.png", "images/a.png"],
        ),
    )
    (sample,) = read_records(path)
    kinds = [p.text if isinstance(p, TextPart) else p.path.name for p in sample.messages[0].parts]
    assert kinds == ["first ", "b.png", ", then ", "a.png", "!"]


def test_list_content_names_its_media(folder: Path) -> None:
    image = {"type": "image", "path": "images/a.png", "width": 40, "height": 30}
    video = {"type": "video", "path": "images/b.png", "options": {"fps": 2.0}}
    content = [image, {"type": "text", "text": "Why?"}, video]
    rows = row(messages=[{"role": "user", "content": content}])
    del rows["images"]
    (sample,) = read_records(write(folder, rows))
    assert sample.media[0].size == (40, 30)
    assert (sample.media[1].kind, sample.media[1].options) == ("video", {"fps": 2.0})
    assert sample.question == "Why?"


def test_embedded_media_and_media_root(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("records")
    data = base64.b64encode(png("green")).decode()
    embedded = [{"type": "image", "data": data}, {"type": "image", "path": "a.png"}]
    rows = row(messages=[{"role": "user", "content": embedded}])
    del rows["images"]
    (sample,) = read_records(write(elsewhere, rows), media_root=folder / "images")
    assert sample.media[0].read() == png("green")
    assert sample.media[1].read() == png()


FAULTS = {
    "broken json": ('{"version": 1, "id"\n', "not valid JSON"),
    "nan": (json.dumps(row(answer=float("nan"))) + "\n", r"invalid character at byte \d+: 'NaN"),
    "not an object": ("[1, 2]\n", "a record is a JSON object, not list"),
    "no version": ({"id": "x", "messages": []}, '"version": 1'),
    "future version": (row(version=2), "'version': Invalid enum value 2"),
    "key of an item": (row(text="4"), r"unknown key 'text'; put it under 'meta'"),
    "misspelt key": (row(anser="4"), r"unknown key 'anser' \(did you mean 'answer'\?\)"),
    "role": (row(messages=[{"role": "human", "content": "?"}]), r"'messages.0.role'"),
    "no message": (row(messages=[]), "'messages'"),
    "two tags, one image": (
        row(messages=[{"role": "user", "content": "<image><image>?"}]),
        r"2 <image> placeholder\(s\) in the messages but 1 image\(s\)",
    ),
    "no tag": (
        row(messages=[{"role": "user", "content": "What?"}]),
        r"0 <image> placeholder\(s\) in the messages but 1 image\(s\)",
    ),
    "tag without list": (row(images=None), r"1 <image> placeholder\(s\).* but 0 image\(s\)"),
    "tag in a list content": (
        row(messages=[{"role": "user", "content": [{"type": "text", "text": "<image>?"}]}]),
        "write the medium as a separate item",
    ),
    "reserved token": (
        row(messages=[{"role": "user", "content": "<image>a <|image_pad|>"}]),
        "the model's own token",
    ),
    "missing": (row(images=["images/none.png"]), "'images/none.png' does not exist"),
    "folder": (row(images=["images"]), "not a regular file"),
    "dots": (row(images=["../images/a.png"]), "leads outside"),
    "absolute": (row(images=["/etc/hostname"]), "leads outside"),
    "file address": (row(images=["file:///etc/hostname"]), "leads outside"),
    "encoded dots": (row(images=["file://images/%2e%2e/%2e%2e/x"]), "leads outside"),
    "remote": (row(images=["https://example.org/a.png"]), "remote media"),
    "empty path": (row(images=[""]), "an empty media path"),
    "bad base64": (
        row(messages=[{"role": "user", "content": [{"type": "image", "data": "*"}]}], images=None),
        "not base64",
    ),
    "one side": (
        row(
            messages=[
                {"role": "user", "content": [{"type": "image", "path": "images/a.png", "width": 3}]}
            ],
            images=None,
        ),
        "both a width and a height",
    ),
}


@pytest.mark.parametrize(("bad", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_name_file_line_and_remedy(folder: Path, bad: object, message: str) -> None:
    path = write(folder, row(id="sound"), "\n", bad)
    with pytest.raises(ValueError, match=message) as caught:
        read_records(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "\n" not in str(caught.value)


def test_symlink_out_of_the_root(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("secret") / "s.png"
    secret.write_bytes(png())
    (folder / "images/link.png").symlink_to(secret)
    (folder / "images/loop.png").symlink_to(folder / "images/loop.png")
    with pytest.raises(ValueError, match="leads outside"):
        read_records(write(folder, row(images=["images/link.png"])))
    with pytest.raises(ValueError, match=r"loop\.png"):
        read_records(write(folder, row(images=["images/loop.png"])))


def test_whole_file_faults(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl: no such file"):
        read_records(folder / "none.jsonl")
    with pytest.raises(ValueError, match="holds no records"):
        read_records(write(folder, "\n"))
    with pytest.raises(ValueError, match="the id 'x' appears twice"):
        read_records(write(folder, row(), row()))
    (folder / "train.jsonl").write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(ValueError, match=r"train\.jsonl:1: not UTF-8"):
        read_records(folder / "train.jsonl")


def test_writing_is_whole_or_not_at_all(folder: Path) -> None:
    path = write(folder, row())
    before = path.read_bytes()
    outside = Sample("y", (Message("user", (MediaRef("image", Path("/etc/hostname")),)),))
    with pytest.raises(ValueError, match="lies outside"):
        write_records(path, [*read_records(path), outside])
    assert path.read_bytes() == before
    assert [p.name for p in folder.iterdir() if p.is_file()] == ["train.jsonl"]


texts = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda t: "<" not in t)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
parts = st.one_of(
    texts.map(TextPart),
    st.builds(
        MediaRef,
        st.sampled_from(["image", "video"]),
        data=st.binary(min_size=1, max_size=9),
        size=st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9)),
        options=st.dictionaries(texts, st.integers(), max_size=2),
    ),
)
samples = st.builds(
    Sample,
    texts.filter(bool),
    st.lists(
        st.builds(
            Message,
            st.sampled_from(["system", "user", "assistant"]),
            st.lists(parts, max_size=4).map(tuple),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    json_values,
    st.none() | texts,
    st.none() | texts,
    st.dictionaries(texts, json_values, max_size=2),
)


# A busy machine is not a failure: no time limit on an example or on making it.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(samples)
def test_any_sample_comes_back_as_it_was(sample: Sample) -> None:
    line = json.dumps(encode(sample, Path()), allow_nan=False)
    assert decode(parse_json(line), Path()) == sample


def test_the_schema_file_is_the_schema() -> None:
    beside = REPOSITORY / "mmr1/data/record.schema.json"
    assert beside.read_text() == json_schema(), "python -m mmr1.data.schema > the file"


def test_a_pickle_is_no_dataset_and_is_never_run(tmp_path):
    class Payload:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'ran'}",))

    (tmp_path / "folder").mkdir()
    places = [tmp_path / "rows.pkl", tmp_path / "rows.jsonl", tmp_path / "folder" / "rows.pkl"]
    for place in places:
        place.write_bytes(pickle.dumps([Payload()]))
    for spec in (places[0], places[1], places[2].parent):
        with pytest.raises(ValueError, match=r"is not a file|neither a file|not UTF-8"):
            load_samples(str(spec), DataConfig())
    assert not (tmp_path / "ran").exists()


def test_relative_paths_follow_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process keeps of folders is about absolute paths."""
    for name in ("one", "two"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data/a.png").touch()
        monkeypatch.chdir(tmp_path / name)
        assert resolve_media(Path("data"), "a.png") == tmp_path / name / "data/a.png"
