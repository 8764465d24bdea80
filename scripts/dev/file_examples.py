"""The kinds of files that rows come in, each with an example: a table of docs/datasets.md."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROW = {"image": "a.png", "question": "How many?", "answer": "3"}
CHAT = {"problem": "<video>When?", "video": "clip.mp4", "answer": "2"}
CATEGORIES = [{"id": 1, "name": "cup"}]
BOX = {"id": 8, "image_id": 5, "category_id": 1, "bbox": [4, 8, 20, 15]}


def picture() -> bytes:
    """A small PNG."""
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(buffer, "PNG")
    return buffer.getvalue()


BASE64 = base64.b64encode(picture()).decode()


@dataclass(frozen=True)
class FileExample:
    """A file or a folder with rows.

    Attributes:
        name: Name of the file or folder.
        whose: Project or data set that has such files.
        files: What is in it, by the names of the files; bytes are shown as ``…``. A table is
            text, a list is rows, and everything else is one JSON value.
        converter: Which one has to read it, if training does not.
    """

    name: str
    whose: str
    files: Mapping[str, Any]
    converter: str | None = None

    def write(self, folder: Path) -> Path:
        """Write it; returns what ``data.train`` or ``--input`` names."""
        for name, content in self.files.items():
            _write(folder / name, content)
        return folder / self.name

    def shown(self) -> str:
        """The contents of the example, for the table."""
        many = len(self.files) > 1
        return ", ".join(
            (f"`{name}` " if many else "") + f"`{_text(name, content)}`"
            for name, content in self.files.items()
        )


EXAMPLES = (
    FileExample("rows.jsonl", "most projects", {"rows.jsonl": [ROW]}),
    FileExample("rows.jsonl.gz", "the same, packed", {"rows.jsonl.gz": [ROW]}),
    FileExample("lines.json", "JSON Lines under another name", {"lines.json": [ROW, ROW]}),
    FileExample("array.json", "LLaMA-Factory, LLaVA", {"array.json": [ROW]}),
    FileExample("array.json.gz", "the same, packed", {"array.json.gz": [ROW]}),
    FileExample(
        "questions.json", "Super-CLEVR as published",
        {"questions.json": {"info": {"version": "1.0"}, "questions": [
            {"image_filename": "a.png", "question": "How many buses?", "answer": 2}
        ]}},
    ),
    FileExample("testmini.json", "MathVista: rows by id", {"testmini.json": {"1": ROW}}),
    FileExample(
        "mathvista.parquet", "MathVista on the Hub, the picture inside",
        {"mathvista.parquet": [{
            "question": "How far?", "image": "images/1.jpg", "decoded_image": {"bytes": picture()},
            "answer": "25", "answer_type": "integer", "question_type": "free_form",
        }]},
    ),
    FileExample(
        "math_vision.parquet", "MATH-Vision on the Hub",
        {"math_vision.parquet": [{
            "question": "Which? <image1>", "options": ["one", "two"], "image": "images/1.jpg",
            "decoded_image": {"bytes": picture()}, "answer": "B",
        }]},
    ),
    FileExample(
        "bench.tsv", "VLMEvalKit: pictures in base64",
        {"bench.tsv": "index\tquestion\tA\tB\tanswer\timage\n"
                      f"1\tColour?\tred\tblue\tA\t{BASE64}\n"},
    ),
    FileExample(
        "rows.csv", "tables", {"rows.csv": "question,answer,image\nHow many?,3,a.png\n"},
    ),
    FileExample(
        "parts", "a folder with splits; `parts@test` names one",
        {"parts/train.jsonl": [ROW], "parts/test.jsonl": [ROW]},
    ),
    FileExample(
        "saved", "a folder saved by `datasets`; with `Image`, `Sequence(Image)` and `Video`",
        {"saved": [CHAT]},
    ),
    FileExample(
        "instances.json", "COCO detection",
        {"instances.json": {
            "images": [{"id": 5, "file_name": "a.png"}], "annotations": [BOX],
            "categories": CATEGORIES,
        }},
        converter="coco",
    ),
    FileExample(
        "refcoco", "RefCOCO: a folder with both files",
        {
            "refcoco/refs(unc).p": [{
                "ref_id": 9, "ann_id": 8, "image_id": 5, "split": "train",
                "sentences": [{"raw": "The left cup"}],
            }],
            "refcoco/instances.json": {
                "images": [{"id": 5, "file_name": "a.png"}], "annotations": [BOX],
                "categories": CATEGORIES,
            },
        },
        converter="refcoco",
    ),
)  # fmt: skip


def table() -> str:
    """Every kind of file with an example."""
    head = "| file | who has it | what is in it | read by |\n|---|---|---|---|\n"
    return head + "".join(map(_line, EXAMPLES))


def _line(example: FileExample) -> str:
    reader = f"`mmr1-data convert {example.converter}`" if example.converter else "`data.train`"
    return f"| `{example.name}` | {example.whose} | {example.shown()} | {reader} |\n"


def _text(name: str, content: Any) -> str:
    """The content as the table shows it."""
    if isinstance(content, str):
        plain = content.replace(BASE64, "…").replace("\t", " ⇥ ").rstrip("\n")
        return plain.replace("\n", " ⏎ ")
    if isinstance(content, list) and ".json" in name and name.partition(".")[0] != "array":
        return " ⏎ ".join(map(_json, content))
    return _json(content)


def _json(value: Any) -> str:
    text = "…" if isinstance(value, bytes) else None
    return text or json.dumps(value, ensure_ascii=False, default=lambda _: "…")


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == "":
        _save_dataset(path, content)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    elif path.suffix == ".p":
        path.write_bytes(pickle.dumps(content, protocol=2))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(_file_text(path, content).encode()))
    else:
        path.write_text(_file_text(path, content))


def _file_text(path: Path, content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and not path.name.startswith("array"):
        return "".join(json.dumps(row) + "\n" for row in content)
    return json.dumps(content)


def _save_dataset(path: Path, rows: list[dict[str, Any]]) -> None:
    """Save a dataset with the videos inside, as a ``Video`` feature has them."""
    features = datasets.Features(
        {name: datasets.Value("string") for name in rows[0]}
        | {"video": datasets.Video(decode=False)}
    )
    inside = [
        {**row, "video": {"bytes": (path.parent / row["video"]).read_bytes(), "path": row["video"]}}
        for row in rows
    ]
    datasets.Dataset.from_list(inside, features=features).save_to_disk(path)
