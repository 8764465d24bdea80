"""The row forms of other projects: recognised by their keys, read as their loaders read them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mmr1.config import DataConfig
from mmr1.data.forms import read_row, recognise
from mmr1.data.forms.form import Place
from mmr1.data.forms.options import with_options
from mmr1.data.sources import load_mixture, load_samples
from mmr1.types import MediaRef, Sample, TextPart
from mmr1.vision.images import image_size
from tests.vision.media import encoded, write_video

RED = encoded(Image.new("RGB", (40, 30), "red"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"images/{name}.png").write_bytes(RED)
    write_video(tmp_path / "clip.mp4", frames=8)
    return tmp_path


def shape(sample: Sample) -> list[str]:
    """``user: image 'What?'`` for every message: what stands where."""
    return [
        " ".join(
            [f"{m.role}:"] + [repr(p.text) if isinstance(p, TextPart) else p.kind for p in m.parts]
        )
        for m in sample.messages
    ]


BASE64 = base64.b64encode(RED).decode()
ROWS: dict[str, tuple[dict[str, Any], list[str], Any, str | None]] = {
    "easyr1": (
        {"problem": "<image>Find x.", "images": [{"bytes": RED, "path": None}], "answer": "5"},
        ["user: image 'Find x.'"], "5", "math",
    ),
    "verl": (
        {
            "data_source": "geo3k",
            "prompt": [{"role": "user", "content": "<image>Find x."}],
            "images": [{"bytes": RED}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "5"},
            "extra_info": {"split": "train", "index": 3},
        },
        ["user: image 'Find x.'"], "5", "math",
    ),
    "trl": (
        {
            "prompt": [{"role": "user", "content": "Find x."}],
            "image": {"bytes": RED},
            "solution": "<answer>5</answer>",
        },
        ["user: image 'Find x.'"], "5", None,
    ),
    "openrlhf": (
        {"prompt": "<image>Find x.", "images": ["images/a.png"], "label": "5"},
        ["user: image 'Find x.'"], "5", "math",
    ),
    "lmm_r1": (
        {
            "message": json.dumps(
                [
                    {"role": "system", "content": "Think."},
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Find x.\n"},
                            {"type": "image", "image": "/root/of/another//images/a.png"},
                        ],
                    },
                ]
            ),
            "answer": "$\\boxed{60}$",
        },
        ["system: 'Think.'", "user: 'Find x.\\n' image"], "$\\boxed{60}$", "math",
    ),
    "r1_v": (
        {"problem": "How many?", "solution": "<answer> 3 </answer>", "image": {"bytes": RED}},
        ["user: image 'How many?'"], "3", "math",
    ),
    "r1_v_eval": (
        {"image_path": "./images/a.png", "question": "How many?", "ground_truth": 4},
        ["user: image 'How many?'"], 4, "count",
    ),
    "vlm_r1": (
        {
            "id": 1,
            "image": ["images/a.png", "images/b.png"],
            "conversations": [
                {"from": "human", "value": "Compare."},
                {"from": "gpt", "value": "No response"},
            ],
        },
        ["user: image image 'Compare.'", "assistant: 'No response'"], "No response", "math",
    ),
    "video_r1": (
        {
            "problem_id": 2,
            "problem": "What happens?",
            "data_type": "video",
            "problem_type": "multiple choice",
            "options": ["A. rain", "B. snow"],
            "process": "<think>It snows.</think>",
            "solution": "<answer>B</answer>",
            "path": "./clip.mp4",
        },
        [
            "user: video 'What happens?Options:\\nA. rain\\nB. snow\\n'",
            "assistant: '<think>It snows.</think>\\n<answer>B</answer>'",
        ],
        "B", "choice",
    ),
    "rec": (
        {
            "image": "images/a.png",
            "problem": "The red one.",
            "solution": [1.5, 2, 30, 28],
            "bbox_list": [[1.5, 2, 29, 27]],
            "normalized_solution": [37, 66, 750, 933],
            "width": 40,
            "height": 30,
        },
        ["user: image 'The red one.'"], [[1.5, 2.0, 30.0, 28.0]], "iou",
    ),
    "sharegpt": (
        {
            "messages": [
                {"role": "user", "content": "<image>Who?"},
                {"role": "assistant", "content": "Me."},
                {"role": "user", "content": "Where?<image>"},
                {"role": "assistant", "content": "Here."},
            ],
            "images": ["images/a.png", "images/a.png"],
        },
        [
            "user: image 'Who?'",
            "assistant: 'Me.'",
            "user: 'Where?' image",
            "assistant: 'Here.'",
        ],
        None, None,
    ),
    "canonical": (
        {
            "version": 1,
            "id": "x",
            "messages": [{"role": "user", "content": "<image>Hm?"}],
            "images": ["images/a.png"],
        },
        ["user: image 'Hm?'"], None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_every_form_is_recognised_and_read(root: Path, name: str) -> None:
    row, expected, answer, task = ROWS[name]
    assert recognise(row) == name
    sample = read_row(row, Place(root, "set", 7))
    assert shape(sample) == expected
    assert (sample.answer, sample.task) == (answer, task)
    for ref in sample.media:
        assert ref.read() == RED or ref.kind == "video"
    if name != "canonical":
        assert (sample.id, sample.source) == ("set-000007", "set")


def test_r1_onevision_base64_with_and_without_prefix_or_null(root: Path) -> None:
    """A later turn may carry the tag; a row may have no image at all; the reply is long."""
    long = "Because " * 60
    turns = [
        {"from": "human", "value": "Hello."},
        {"from": "gpt", "value": "Hi."},
        {"from": "human", "value": "<image>\nWhat?"},
        {"from": "gpt", "value": long},
    ]
    for value in (BASE64, f"data:image/png;base64,{BASE64}"):
        sample = read_row({"image": value, "conversations": turns}, Place(root, "s", 0))
        assert shape(sample)[2] == "user: image '\\nWhat?'"
        assert sample.media[0].read() == RED
        assert sample.answer is None
    none = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "<answer>2</answer>"}]
    sample = read_row({"image": None, "conversations": none}, Place(root, "s", 0))
    assert (sample.media, sample.answer) == ((), "2")


def test_video_and_picture_of_one_question(root: Path) -> None:
    row = {
        **ROWS["video_r1"][0],
        "problem": "<image 1> What sugar is this?",
        "image_path": "images/a.png",
    }
    sample_shape = shape(read_row(row, Place(root, "s", 0)))[0]
    assert sample_shape.startswith("user: video image ' What sugar")


def test_an_unknown_or_forced_form(root: Path) -> None:
    with pytest.raises(ValueError, match=r"a row with the columns colour has no known format"):
        read_row({"colour": "red"}, Place(root, "s", 0))
    with pytest.raises(ValueError, match=r"unknown data\.format 'easyrl' \(did you mean 'easyr1'"):
        read_row(ROWS["easyr1"][0], Place(root, "s", 0), "easyrl")
    with pytest.raises(ValueError, match="the key 'answer' is missing"):
        read_row({"problem": "x"}, Place(root, "s", 0), "easyr1")
    both = {**ROWS["r1_v"][0], "answer": "4"}
    assert read_row(both, Place(root, "s", 0)).answer == "3"
    assert read_row(both, Place(root, "s", 0), "easyr1").answer == "4"


def test_absolute_paths_of_other_machines(root: Path) -> None:
    def row(path: str) -> dict[str, Any]:
        return {"image_path": path, "question": "?", "ground_truth": "1"}

    place = Place(root, "s", 0)
    medium = read_row(row("/home/them/x/images/a.png"), place).media[0]
    assert medium.path == root / "images/a.png"
    # A file name alone could be another file; a relative name is meant as it is written.
    for bad in ("/home/them/other/clip.mp4", "x/images/a.png", "/x/../images/../../a.png"):
        with pytest.raises(ValueError, match=r"does not exist|leads outside"):
            read_row(row(bad), place)


def test_options_get_their_letters() -> None:
    assert with_options("Q", ["A. x", "(B) y", "C: z", "w"]) == "Q\nA. x\nB. y\nC. z\nD. w"


MIXED = [
    {"problem": "1+1?", "answer": "2"},
    {"problem": "<image>a", "images": [{"bytes": RED}], "answer": "1"},
    {"problem": "<image>b<image>", "images": [{"bytes": RED}, {"bytes": RED}], "answer": "1"},
]


def test_jsonl_json_parquet_and_hub_datasets_read_alike(root: Path) -> None:
    plain = [{**r, "images": ["images/a.png"] * len(r.get("images", []))} for r in MIXED]
    (root / "r.jsonl").write_text("\n".join(json.dumps(r) for r in plain))
    (root / "r.json").write_text(json.dumps(plain))
    whole = [{**r, "images": r.get("images", [])} for r in MIXED]
    pq.write_table(pa.Table.from_pylist(whole), root / "r.parquet")
    features = datasets.Features(
        problem=datasets.Value("string"),
        images=datasets.List(datasets.Image()),
        answer=datasets.Value("string"),
    )
    hub = datasets.Dataset.from_list(whole, features=features)
    datasets.DatasetDict({"train": hub, "test": hub.select([0])}).save_to_disk(root / "disk")
    for name in ("r.jsonl", "r.json", "r.parquet", "disk", "disk@train"):
        samples = load_samples(root / name)
        assert [shape(s) for s in samples] == [
            ["user: '1+1?'"],
            ["user: image 'a'"],
            ["user: image 'b' image"],
        ]
        assert all(m.read() == RED for s in samples for m in s.media)
    assert len(load_samples(f"{root / 'disk'}@test")) == 1


def test_sources_that_are_none(root: Path) -> None:
    for spec, message in (
        ("none.jsonl", "no such file"),
        ("no/such/dataset-of-ours", "no such file or folder"),
    ):
        with pytest.raises(ValueError, match=message):
            load_samples(root / spec if "jsonl" in spec else f"./{spec}")
    (root / "bad.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(ValueError, match=r"bad\.parquet: not a valid parquet file"):
        load_samples(root / "bad.parquet")
    (root / "bad.json").write_text("{]")
    with pytest.raises(ValueError, match=r"bad\.json: not valid JSON"):
        load_samples(root / "bad.json")
    (root / "empty.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no records"):
        load_samples(root / "empty.json")


def test_bad_rows_stop_the_run_or_go_to_quarantine(root: Path) -> None:
    from mmr1.data.quarantine import Quarantine

    lines = [json.dumps({"problem": f"{i}?", "answer": "1"}) for i in range(8)]
    missing = json.dumps({"problem": "<image>?", "images": ["images/none.png"], "answer": "1"})
    path = root / "r.jsonl"
    path.write_text("\n".join([*lines, missing, "{broken"]))
    with pytest.raises(ValueError, match=r"r\.jsonl:9: media file 'images/none\.png'"):
        load_samples(path)
    config = DataConfig(max_bad_fraction=0.2)
    quarantine = Quarantine(0.2)
    assert len(load_samples(path, config, quarantine)) == 8
    dropped = quarantine.dropped
    assert [entry["row"] for entry in dropped] == [f"{path}:9", f"{path}:10"]
    assert "none.png" in dropped[0]["reason"]
    assert "not valid JSON" in dropped[1]["reason"]
    with pytest.raises(ValueError, match=r"2 of 10 rows of \S+r\.jsonl cannot be used.*none\.png"):
        load_samples(path, DataConfig(max_bad_fraction=0.1))


def test_each_dataset_of_a_mixture_answers_for_its_own_rows(root: Path) -> None:
    from mmr1.data.quarantine import Quarantine
    from mmr1.data.sources import keep_fitting

    sound = [json.dumps({"problem": f"{i}?", "answer": "1"}) for i in range(9)]
    (root / "nine.jsonl").write_text("\n".join([*sound, "{broken"]))
    (root / "one.jsonl").write_text(sound[0])
    (root / "half.jsonl").write_text("\n".join([sound[0], "{broken"]))
    nine, one, half = (str(root / f"{name}.jsonl") for name in ("nine", "one", "half"))
    quarantine = Quarantine(0.2)
    sources, _ = load_mixture(DataConfig(train={nine: 1, one: 1}), quarantine)
    assert [len(samples) for samples in sources.values()] == [9, 1]
    assert [entry["row"] for entry in quarantine.dropped] == [f"{nine}:10"]
    # The row that could not be read counts among those that do not fit, and so does its dataset.
    for spec in (nine, one):
        assert keep_fitting(spec, sources[spec], lambda sample: 1, 1, quarantine) == sources[spec]
    with pytest.raises(ValueError, match=r"3 of 10 rows of \S+nine.jsonl cannot be used"):
        keep_fitting(nine, sources[nine], lambda s: 1 + (s.question in "0?1?"), 1, quarantine)
    with pytest.raises(ValueError, match=r"1 of 2 rows of \S+half.jsonl cannot be used"):
        load_mixture(DataConfig(train={nine: 1, half: 1}), Quarantine(0.2))


def test_a_mixture_names_its_weights(root: Path) -> None:
    for name in ("a", "b"):
        (root / f"{name}.jsonl").write_text(json.dumps({"problem": name, "answer": "1"}))
    weights = {str(root / "a.jsonl"): 3.0, str(root / "b.jsonl"): 1.0}
    sources, shares = load_mixture(DataConfig(train=weights))
    assert shares == weights
    assert [s[0].question for s in sources.values()] == ["a", "b"]
    with pytest.raises(ValueError, match=r"data\.train is not set"):
        load_mixture(DataConfig())


def test_a_function_of_ones_own_makes_rows_that_are_read(root: Path) -> None:
    file = root / "own.py"
    file.write_text(
        "def read(row):\n"
        '    return {"problem": row["q"], "images": row["pics"], "answer": row["gold"]["value"]}\n'
        "def nothing(row): pass\n"
        "NUMBER = 3\n"
    )
    row = {"q": "How many?", "pics": ["images/a.png"], "gold": {"value": "3"}, "level": 2}
    place = Place(root, "set", 4)
    sample = read_row(row, place, f"{file}:read")
    assert shape(sample) == ["user: image 'How many?'"]
    assert (sample.answer, sample.meta["row"]["level"]) == ("3", 2)
    for name, changed, message in (
        ("read", {"q": "How many?"}, "the key 'pics' is missing"),
        ("read", {**row, "gold": "3"}, r"not a row of '.*own.py:read': .*TypeError"),
        ("nothing", row, r"nothing returned NoneType; it must return a row"),
        ("NUMBER", row, r"own.py:NUMBER is an? int; it must name a function"),
        ("raed", row, r"has no 'raed' \(did you mean 'read'\?\)"),
    ):
        with pytest.raises(ValueError, match=message):
            read_row(changed, place, f"{file}:{name}")


def test_media_values_that_are_none(root: Path) -> None:
    for value, message in (
        (3, "the image column holds int"),
        ("data:image/png;base64,!!!", "base64 that cannot be decoded"),
        ("ftp://example.org/a.png", "remote media"),
    ):
        with pytest.raises(ValueError, match=message):
            read_row({**ROWS["r1_v"][0], "image": value}, Place(root, "s", 0))
    pil = read_row({**ROWS["r1_v"][0], "image": Image.new("RGB", (9, 9))}, Place(root, "s", 0))
    assert isinstance(pil.media[0], MediaRef)
    assert pil.media[0].read().startswith(b"\x89PNG")


def test_a_decoded_image_is_seen_as_its_file(root: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    for mode in ("RGB", "CMYK", "L"):
        Image.new(mode, (40, 30)).save(root / "turned.jpg", exif=exif)
        sizes = [
            image_size(read_row({**ROWS["r1_v"][0], "image": image}, Place(root, "s", 0)).media[0])
            for image in ("turned.jpg", Image.open(root / "turned.jpg"))
        ]
        assert sizes == [(30, 40), (30, 40)]
