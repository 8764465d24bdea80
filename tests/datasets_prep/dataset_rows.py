"""Small rows in the form of every dataset that has a converter, and the records they become.

The rows are made up, their pictures are noise and their videos a moving bar. Only the form is that
of the datasets: the keys, the way values are written, and where the files lie.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from datasets_prep.frames import list_frames
from tests.vision.media import encoded, noise, write_video

SIZE = (64, 48)
"""Width and height of every picture and video."""
SECONDS = 6.0
"""Length of every video."""


@dataclass(frozen=True)
class Record:
    """What a record is to hold.

    Attributes:
        messages: ``role: text``; a medium is written as its file name in brackets.
        options: Of the first medium.
    """

    messages: Sequence[str]
    answer: Any = None
    task: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """A dataset in small.

    Attributes:
        converter: Which one reads it.
        files: Annotation files by name; the suffix says how the rows are written.
        media: Names of the pictures and videos beside them.
        frames: Folders of pictures that ``mmr1-data frames`` lists as videos.
        records: In order.
        dropped: A part of the reason of each row that cannot be used, in order.
        changed: As the manifest counts them.
    """

    converter: str
    files: Mapping[str, Any]
    records: Sequence[Record]
    media: Sequence[str] = ()
    frames: Sequence[str] = ()
    dropped: Sequence[str] = ()
    changed: Mapping[str, int] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        for name in self.media:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".mp4"):
                write_video(folder / name, int(10 * SECONDS), *SIZE, fps=10)
            else:
                (folder / name).write_bytes(picture(name))
        for name in self.frames:
            list_frames(folder / name, fps=1.0)
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_rows(folder / name, content)


def picture(name: str) -> bytes:
    """The encoded picture of this name: another name is another picture."""
    image = Image.fromarray(noise(*SIZE, zlib.crc32(name.encode())))
    return encoded(image, "JPEG" if name.endswith(".jpg") else "PNG")


def embedded(name: str) -> dict[str, Any]:
    """A picture as a parquet file of the Hub holds it."""
    return {"bytes": picture(name), "path": None}


def write_rows(path: Path, content: Any) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    elif path.suffix == ".p":
        path.write_bytes(pickle.dumps(content, protocol=2))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    else:
        path.write_text(content if path.suffix == ".txt" else json.dumps(content))


def moment_question(sentence: str) -> str:
    return f'When does this happen: "{sentence}"? Give start and end.'


MATHEMATICS = [
    Dataset(
        "geometry3k",
        {
            "12/data.json": {
                "problem_text": "Find y.", "choices": ["3", "5", "4 \\sqrt 2", "8"], "answer": "C",
                "id": 12, "compact_choices": ["3", "5", "4 \\sqrt 2", "8"],
                "precise_value": [3.0, 5.0, 5.657, 8.0], "compact_text": "Find y.",
                "annotat_text": "Find $y$.", "unit": "", "data_type": "train",
            },
            "13/data.json": {
                "answer": "E", "id": 13, "compact_choices": ["1", "2", "3", "4"],
                "compact_text": "Find z.", "annotat_text": "Find $z$.", "data_type": "train",
            },
        },
        [
            Record(
                ["user: [12/img_diagram.png]Find $y$."], "$4 \\sqrt 2$", "math",
                {
                    "source_id": 12, "data_type": "train", "precise_value": [3.0, 5.0, 5.657, 8.0],
                    "choices": ["3", "5", "4 \\sqrt 2", "8"], "letter": "C",
                },
            )
        ],
        media=["12/img_diagram.png", "13/img_diagram.png"],
        dropped=["the answer 'E' is no letter of the 4 choices"],
    ),
    Dataset(
        "geometry3k_hub",
        {
            "train-00000.parquet": [
                {
                    "images": [embedded("triangle.png")], "problem": "<image>Find x.",
                    "answer": "2 \\sqrt { 35 }",
                },
            ]
        },
        [Record(["user: [triangle.png]Find x."], "2 \\sqrt { 35 }", "math")],
    ),
    Dataset(
        "verl_geo3k",
        {
            "train.parquet": [
                {
                    "data_source": "geometry3k", "images": [embedded("kite.png")],
                    "prompt": [{"role": "user", "content": "<image>Find x. Think first."}],
                    "ability": "math", "reward_model": {"style": "rule", "ground_truth": "7.5"},
                    "extra_info": {
                        "split": "train", "index": 0, "answer": "7.5", "question": "Find x.",
                    },
                }
            ]
        },
        [
            Record(
                ["user: [kite.png]Find x. Think first."], "7.5", "math",
                {
                    "data_source": "geometry3k",
                    "extra_info": {
                        "split": "train", "index": 0, "answer": "7.5", "question": "Find x.",
                    },
                },
            )
        ],
    ),
    Dataset(
        "geoqa_8k",
        {
            "train.parquet": [
                {
                    "image": embedded("angle.png"), "problem": "How large is angle BAC?",
                    "solution": "<answer> 35° </answer>",
                },
            ]
        },
        [Record(["user: [angle.png]How large is angle BAC?"], "35°", "math")],
    ),
    Dataset(
        "geoqa_eval",
        {
            "geoqa_test.jsonl": [
                {
                    "image_path": "./images/7.png", "question": "How large is angle 1?",
                    "ground_truth": "70°",
                },
                {
                    "image_path": "./images/8.png", "question": "How long is the side?",
                    "ground_truth": "2√{3}",
                },
            ]
        },
        [
            Record(["user: [images/7.png]How large is angle 1?"], "70°", "math"),
            Record(["user: [images/8.png]How long is the side?"], "2√{3}", "math"),
        ],
        media=["images/7.png", "images/8.png"],
    ),
    Dataset(
        "geoqa_choice",
        {
            "form_questions.jsonl": [
                {
                    "question_id": 4, "image": "test/4.png",
                    "text": "\nThink, then say which.\nQuestion:Angle B is ()\nChoices:\n"
                    "A:20°\nB:30°\nC:40°\nD:50°",
                },
                {
                    "question_id": 5, "image": "test/4.png",
                    "text": "\nSay which.\nQuestion:Angle C is ()\nChoices:\nA:1°\nB:2°",
                },
            ],
            "form_answers.jsonl": [{"question_id": 4, "text": "C"}],
        },
        [
            Record(
                ["user: [test/4.png]Angle B is ()\nA. 20°\nB. 30°\nC. 40°\nD. 50°"], "C", "choice",
                {"question_id": 4, "options": ["20°", "30°", "40°", "50°"]},
            )
        ],
        media=["test/4.png"],
        dropped=["no question, no choices or no answer"],
    ),
    Dataset(
        "lmm_r1",
        {
            "train.jsonl": [
                {
                    "message": json.dumps(
                        [
                            {"role": "system", "content": "Think, then answer in \\boxed{}."},
                            {
                                "role": "user",
                                "content": [
                                    {"type": "text", "text": "How many corners?\n"},
                                    {"type": "image", "image": "/home/her/set//images/9.jpg"},
                                ],
                            },
                        ]
                    ),
                    "question": "How many corners?", "answer": "$\\boxed{6}$",
                },
                {
                    "message": json.dumps([{"role": "user", "content": "What is 6 times 7?"}]),
                    "question": "What is 6 times 7?", "answer": "$\\boxed{42}$",
                },
            ]
        },
        [
            Record(
                [
                    "system: Think, then answer in \\boxed{}.",
                    "user: How many corners?\n[images/9.jpg]",
                ],
                "$\\boxed{6}$", "math",
            ),
            Record(["user: What is 6 times 7?"], "$\\boxed{42}$", "math"),
        ],
        media=["images/9.jpg"],
    ),
    Dataset(
        "math_vision",
        {
            "test.jsonl": [
                {
                    "id": "1", "question": "How many tiles?\n<image1>", "options": [],
                    "answer": "12", "solution": None, "level": 2, "subject": "counting",
                    "image": "images/1.jpg",
                },
                {
                    "id": "2", "question": "Row <image1> hides which digit <image2>?",
                    "options": [], "answer": "8", "image": "images/2.jpg",
                },
                {
                    "id": "3", "question": "Which comes next?", "options": ["<image1>", "none"],
                    "answer": "B", "image": "images/3.jpg",
                },
            ]
        },
        [
            Record(
                ["user: How many tiles?\n[images/1.jpg]"], "12", "math",
                {"source_id": "1", "level": 2, "subject": "counting"},
            ),
            Record(
                ["user: Row [images/2.jpg] hides which digit (picture 2)?"], "8", "math",
                {"source_id": "2"},
            ),
            Record(
                ["user: [images/3.jpg]Which comes next?\nA. picture 1\nB. none"], "B", "choice",
                {"source_id": "3", "options": ["picture 1", "none"]},
            ),
        ],
        media=["images/1.jpg", "images/2.jpg", "images/3.jpg"],
        changed={
            "several tags for one picture: the first kept, the others named": 1,
            "no tag: the picture put before the question": 1,
        },
    ),
    Dataset(
        "mathverse",
        {
            "testmini.json": [
                {
                    "sample_index": "1", "problem_version": "Text Dominant", "image": "v1/1.png",
                    "question": "Angle A is ()\nChoices:\nA:20°\nB:70°", "answer": "B",
                    "question_type": "multi-choice", "query_wo": "Say: Angle A?", "query_cot": "",
                },
                {
                    "sample_index": "2", "problem_version": "Text Only", "image": "",
                    "question": "A cube of side 3 has which volume?", "answer": "27",
                    "question_type": "free-form", "metadata": {"subject": "Solid Geometry"},
                },
                {
                    "sample_index": "3", "image": "v1/1.png", "question": "Angle B is ()",
                    "answer": "A", "question_type": "multi-choice",
                },
            ]
        },
        [
            Record(
                ["user: [v1/1.png]Angle A is ()\nA. 20°\nB. 70°"], "B", "choice",
                {
                    "sample_index": "1", "problem_version": "Text Dominant",
                    "options": ["20°", "70°"],
                },
            ),
            Record(
                ["user: A cube of side 3 has which volume?"], "27", "math",
                {
                    "sample_index": "2", "problem_version": "Text Only",
                    "metadata": {"subject": "Solid Geometry"},
                },
            ),
        ],
        media=["v1/1.png"],
        dropped=["a multiple-choice question without choices"],
    ),
    Dataset(
        "mathvista",
        {
            "testmini.json": {
                "1": {
                    "question": "Which bar is higher?", "image": "images/1.jpg",
                    "choices": ["red", "blue"], "answer": "blue", "answer_type": "text",
                    "unit": None, "precision": None, "query": "Hint: say the letter.",
                },
                "2": {
                    "question": "How far is it?", "image": "images/2.jpg", "choices": None,
                    "answer": "2.5", "answer_type": "float", "unit": "km", "precision": 1.0,
                },
                "3": {
                    "question": "How many?", "image": "images/2.jpg", "choices": None,
                    "answer": "", "answer_type": "integer",
                },
            }
        },
        [
            Record(
                ["user: [images/1.jpg]Which bar is higher?\nA. red\nB. blue"], "B", "choice",
                {"source_id": "1", "answer_type": "text", "options": ["red", "blue"]},
            ),
            Record(
                ["user: [images/2.jpg]How far is it? (in km) Round to 1 decimal place(s)."],
                "2.5", "numeric",
                {"source_id": "2", "answer_type": "float", "unit": "km", "precision": 1.0},
            ),
        ],
        media=["images/1.jpg", "images/2.jpg"],
        dropped=["the answer is withheld"],
    ),
    Dataset(
        "mathvista",
        {
            "data/testmini-00000-of-00001.parquet": [
                {
                    "pid": "1", "question": "Which bar is higher?", "image": "images/1.jpg",
                    "decoded_image": embedded("bars.png"), "choices": ["red", "blue"],
                    "unit": None, "precision": None, "answer": "blue", "answer_type": "text",
                    "query": "Hint: say the letter.",
                }
            ]
        },
        [
            Record(
                ["user: [bars.png]Which bar is higher?\nA. red\nB. blue"], "B", "choice",
                {"pid": "1", "answer_type": "text", "options": ["red", "blue"]},
            )
        ],
    ),
    Dataset(
        "math_vision",
        {
            "data/test-00000-of-00001.parquet": [
                {
                    "id": "1", "question": "How many tiles?\n<image1>", "options": [],
                    "image": "images/1.jpg", "decoded_image": embedded("tiles.png"),
                    "answer": "12", "solution": None, "level": 2, "subject": "counting",
                }
            ]
        },
        [
            Record(
                ["user: How many tiles?\n[tiles.png]"], "12", "math",
                {"source_id": "1", "level": 2, "subject": "counting"},
            )
        ],
    ),
    Dataset(
        "mm_eureka",
        {
            "dataset.jsonl": [
                {
                    "id": "a",
                    "message": json.dumps(
                        [
                            {
                                "role": "user",
                                "content": [
                                    {"type": "image", "image": "file:///inspire/hdd/x/imgs/a.png"},
                                    {"type": "text", "text": "Find x."},
                                ],
                            }
                        ]
                    ),
                    "answer": "3",
                },
                {
                    "id": "b", "answer": "D", "image_urls": ["inspire/hdd/x/imgs/b.png"],
                    "conversations": [{"role": "user", "content": "<image>Which?"}],
                },
            ]
        },
        [
            Record(["user: [imgs/a.png]Find x."], "3", "math", {"source_id": "a"}),
            Record(["user: [imgs/b.png]Which?"], "D", "math", {"source_id": "b"}),
        ],
        media=["imgs/a.png", "imgs/b.png"],
        changed={"image found by the end of its path": 2},
    ),
    Dataset(
        "mmk12",
        {
            "k12.json": [
                {"id": "u", "question": "How long?", "answer": "18.", "image_path": "i/u.png"},
                {"id": "v", "question": "Which one?", "answer": "C", "image_path": "i/v.png"},
                {"id": "w", "question": "Fill in.", "answer": "a\nb", "image_path": "i/v.png"},
            ]
        },
        [
            Record(["user: [i/u.png]How long?"], "18", "math", {"source_id": "u"}),
            Record(["user: [i/v.png]Which one?"], "C", "choice", {"source_id": "v"}),
        ],
        media=["i/u.png", "i/v.png"],
        dropped=["several answers in one row"],
        changed={"answer cleaned of its markup": 1},
    ),
    Dataset(
        "multimodal_open_r1",
        {
            "train.parquet": [
                {
                    "image": embedded("chart.png"), "problem": "What is the largest share?",
                    "solution": "<think>The blue one.</think>\n\n<answer>45</answer>",
                    "original_question": "Largest?", "original_answer": "45",
                }
            ]
        },
        [
            Record(
                ["user: [chart.png]What is the largest share?"], "45", "math",
                {"original_question": "Largest?", "original_answer": "45"},
            )
        ],
    ),
    Dataset(
        "journeybench",
        {
            "test.parquet": [
                {
                    "images": [embedded("left.png"), embedded("right.png")],
                    "problem": "<image><image>How many cups in both?", "answer": "5",
                }
            ]
        },
        [Record(["user: [left.png][right.png]How many cups in both?"], "5", "math")],
    ),
]  # fmt: skip

COUNTING = [
    Dataset(
        "clevr_70k",
        {
            "train.parquet": [
                {
                    "image": embedded("scene.png"), "problem": "How many items are there?",
                    "solution": "<answer> 3 </answer>",
                },
                {
                    "image": embedded("scene.png"), "problem": "How many are red?",
                    "solution": "3",
                },
            ]
        },
        [Record(["user: [scene.png]How many items are there?"], "3", "count")],
        dropped=["has no <answer> tag"],
    ),
    Dataset(
        "super_clevr",
        {
            "superCLEVR_questions.json": [
                {
                    "image_filename": "new_1.png", "image_index": 1, "split": "new",
                    "question": "How many red trucks are there?", "answer": "2",
                },
                {
                    "image_filename": "new_1.png", "image_index": 1, "split": "new",
                    "question": "Is there a bus?", "answer": True,
                },
                {
                    "image_filename": "new_1.png", "image_index": 1, "split": "new",
                    "question": "What is left of it?", "answer": "tandem bike",
                },
            ]
        },
        [
            Record([f"user: [images/new_1.png]{question}"], answer, task,
                   {"image_filename": "new_1.png", "image_index": 1, "split": "new"})
            for question, answer, task in (
                ("How many red trucks are there?", "2", "count"),
                ("Is there a bus?", "yes", "exact"),
                ("What is left of it?", "tandem bike", "exact"),
            )
        ],
        media=["images/new_1.png"],
    ),
    Dataset(
        "super_clevr",
        {
            "superCLEVR_questions_30k.json": {
                "info": {"split": "new", "license": "CC BY 4.0"},
                "questions": [
                    {
                        "image_filename": "new_1.png", "split": "new",
                        "question": "Is there a bus?", "answer": True,
                    }
                ],
            }
        },
        [
            Record(["user: [images/new_1.png]Is there a bus?"], "yes", "exact",
                   {"image_filename": "new_1.png", "split": "new"})
        ],
        media=["images/new_1.png"],
    ),
    Dataset(
        "superclevr_eval",
        {
            "superclevr_test.jsonl": [
                {"image_path": "./images/s.png", "question": "How many?", "ground_truth": 4}
            ]
        },
        [Record(["user: [images/s.png]How many?"], 4, "count")],
        media=["images/s.png"],
    ),
]  # fmt: skip

BOXES = [
    Dataset(
        "refcoco",
        {
            "refcocog.json": [
                {
                    "image": "train/1.jpg", "bbox": [4.0, 8.0, 20.0, 30.0], "ref_id": 9,
                    "sentences": [{"sent": "the left cup"}, {"raw": "The cup.", "sent": "the cup"}],
                },
                {"image": "train/1.jpg", "bbox": [50.0, 8.0, 20.0, 30.0], "sentences": ["beyond"]},
            ]
        },
        [
            Record(
                [f"user: [train/1.jpg]Give the bounding box of: {sentence}"],
                [[4.0, 8.0, 24.0, 38.0]], "iou", {"ref_id": 9},
            )
            for sentence in ("the left cup", "The cup.")
        ],
        media=["train/1.jpg"],
        dropped=["leaves the image of 64 x 48"],
    ),
    Dataset(
        "refcoco",
        {
            "instances.json": {
                "images": [{"id": 5, "file_name": "COCO_train2014_5.jpg"}],
                "annotations": [
                    {"id": 8, "image_id": 5, "category_id": 1, "bbox": [4.0, 8.0, 20.0, 30.0]}
                ],
                "categories": [{"id": 1, "name": "cup"}],
            },
            "refs(unc).p": [
                {
                    "ref_id": 9, "ann_id": 8, "image_id": 5, "split": "train",
                    "file_name": "COCO_train2014_5_8.jpg",
                    "sentences": [{"sent": "the left cup", "raw": "The left cup"}],
                }
            ],
        },
        [
            Record(
                ["user: [train2014/COCO_train2014_5.jpg]Give the bounding box of: The left cup"],
                [[4.0, 8.0, 24.0, 38.0]], "iou", {"ref_id": 9, "split": "train"},
            )
        ],
        media=["train2014/COCO_train2014_5.jpg"],
    ),
    Dataset(
        "refcoco",
        {
            "ref-00000.parquet": [
                {  # one copy on the hub has corners in 'bbox'
                    "image": embedded("cup.png"), "bbox": [4.0, 8.0, 24.0, 38.0],
                    "sentences": [{"sent": "the cup"}],
                    "raw_anns": json.dumps({"bbox": [4.0, 8.0, 20.0, 30.0]}),
                }
            ]
        },
        [
            Record(
                ["user: [cup.png]Give the bounding box of: the cup"],
                [[4.0, 8.0, 24.0, 38.0]], "iou",
            )
        ],
    ),
    Dataset(
        "coco",
        {
            "annotations/instances_val2017.json": {
                "images": [{"id": 5, "file_name": "5.jpg", "width": 64, "height": 48}],
                "annotations": [
                    {"image_id": 5, "category_id": 1, "bbox": [4, 8, 20, 30], "iscrowd": 0},
                    {"image_id": 5, "category_id": 2, "bbox": [0, 0, 9, 9], "iscrowd": 1},
                    {"image_id": 5, "category_id": 1, "bbox": [30, 8, 20, 30], "iscrowd": 0},
                ],
                "categories": [{"id": 1, "name": "cup"}, {"id": 2, "name": "person"}],
            }
        },
        [
            Record(
                ["user: [annotations/val2017/5.jpg]Locate every cup in the image. Give their "
                 "bounding boxes."],
                [[4.0, 8.0, 24.0, 38.0], [30.0, 8.0, 50.0, 38.0]], "iou",
                {"image_id": 5, "category": "cup"},
            )
        ],
        media=["annotations/val2017/5.jpg"],
        dropped=["a crowd"],
    ),
    Dataset(
        "vlm_r1_rec",
        {
            "refcoco_val.json": [
                {
                    "image": "train/2.jpg", "problem": "Where is the red hat?", "width": 64,
                    "height": 48, "solution": [3.5, 6.0, 33.5, 40.25],
                    "bbox_list": [[3.5, 6.0, 32.5, 39.25]],
                    "normalized_solution": [54, 125, 523, 838], "dataset_name": "refcoco",
                }
            ]
        },
        [
            Record(
                ["user: [train/2.jpg]Where is the red hat?"], [[3.5, 6.0, 33.5, 40.25]], "iou",
                {"dataset_name": "refcoco"},
            )
        ],
        media=["train/2.jpg"],
    ),
    Dataset(
        "vlm_r1_rec_train",
        {
            "rec_train.jsonl": [
                {
                    "id": 1, "image": "train/3.jpg",
                    "conversations": [
                        {"from": "human", "value": "<image>Where is the dog?"},
                        {"from": "gpt", "value": '```json\n[{"bbox_2d": [4, 5, 30, 40]}]\n```'},
                    ],
                },
                {
                    "id": 2, "image": "train/3.jpg",
                    "conversations": [
                        {"from": "human", "value": "<image>Where is the cat?"},
                        {"from": "gpt", "value": "Nowhere."},
                    ],
                },
            ]
        },
        [
            Record(
                ["user: [train/3.jpg]Where is the dog?"], [[4.0, 5.0, 30.0, 40.0]], "iou",
                {"source_id": 1},
            )
        ],
        media=["train/3.jpg"],
        dropped=["the reply holds no box"],
    ),
    Dataset(
        "got10k",
        {
            "got_val.json": [
                {
                    "path": "/mnt/theirs/val/GOT_Val_7", "object": "kite",
                    "gt": [[0.1, 0.0, 0.8, 0.75]] * 8,
                },
                {"path": "/mnt/theirs/val/GOT_Val_8", "object": "car", "gt": [[0, 0, 1, 1]] * 8},
            ]
        },
        [
            Record(
                ["user: [val/GOT_Val_7.frames.json]Where is the kite in each of the 8 frames?"],
                [[0.1, 0.0, 0.8, 0.75]] * 8, "tracking", {"object": "kite", "box_space": "unit"},
            )
        ],
        media=[f"val/GOT_Val_7/{number:08d}.jpg" for number in range(1, 9)],
        frames=["val/GOT_Val_7"],
        dropped=["list its frames with 'mmr1-data frames'"],
    ),
]  # fmt: skip

VIDEOS = [
    Dataset(
        "charades_sta",
        {
            "charades_sta_train.txt": "GARDE 0.5 2.0##a person opens a gate.\n"
            "GARDE 4.0 9.9##a person waves.\n"
            "GARDE 3.0 3.0##a person sits.\n"
            "HOUSE 0.0 1.0##a person reads.\n"
        },
        [
            Record(
                [f"user: [Charades_v1/GARDE.mp4]{moment_question('a person opens a gate')}"],
                [0.5, 2.0], "tiou", {"duration": SECONDS, "sentence": "a person opens a gate."},
            ),
            Record(
                [f"user: [Charades_v1/GARDE.mp4]{moment_question('a person waves')}"],
                [4.0, SECONDS], "tiou", {"duration": SECONDS, "sentence": "a person waves."},
            ),
        ],
        media=["Charades_v1/GARDE.mp4"],
        dropped=["before it begins", "the video 'HOUSE'"],
        changed={"end clipped to the video's duration": 1},
    ),
    Dataset(
        "charades_sta",
        {
            "charades_test.json": {
                "GARDE": {
                    "duration": 6.0, "timestamps": [[1.0, 2.0], [2.5, 4.0]],
                    "sentences": ["a person bows.", "a person leaves."],
                }
            }
        },
        [
            Record(
                [f"user: [videos/GARDE.mp4]{moment_question('a person bows')}"], [1.0, 2.0], "tiou",
                {"duration": 6.0, "sentence": "a person bows."},
            ),
            Record(
                [f"user: [videos/GARDE.mp4]{moment_question('a person leaves')}"], [2.5, 4.0],
                "tiou", {"duration": 6.0, "sentence": "a person leaves."},
            ),
        ],
        media=["videos/GARDE.mp4"],
    ),
    Dataset(
        "time_r1",
        {
            "train_2k5.json": [
                {
                    "video": "./dataset/videos/a.mp4", "duration": 6.0, "timestamp": [1.0, 3.0],
                    "sentence": "A hand opens a box.", "qid": "my|a", "video_start": None,
                    "video_end": None, "difficulty": 50.0, "pred": [0.0, 3.0],
                },
                {
                    "video": "./dataset/videos/a.mp4", "duration": 3.0, "timestamp": [0.5, 2.5],
                    "sentence": "A cat jumps.", "qid": "my|b", "video_start": 2.0,
                    "video_end": 5.0, "difficulty": 10.0, "pred": [0.0, 3.0],
                },
            ]
        },
        [
            Record(
                [f"user: [dataset/videos/a.mp4]{moment_question('A hand opens a box')}"],
                [1.0, 3.0], "tiou",
                {
                    "qid": "my|a", "difficulty": 50.0, "duration": 6.0,
                    "sentence": "A hand opens a box.",
                },
            ),
            Record(
                [f"user: [dataset/videos/a.mp4]{moment_question('A cat jumps')}"],
                [0.5, 2.5], "tiou",
                {"qid": "my|b", "difficulty": 10.0, "duration": 3.0, "sentence": "A cat jumps."},
                {"start": 2.0, "end": 5.0},
            ),
        ],
        media=["dataset/videos/a.mp4"],
    ),
    Dataset(
        "tvgbench",
        {
            "tvgbench.json": [
                {
                    "path": "./videos/b.mp4", "question": "a person sits.", "answer": "1.5-2.5",
                    "start": None, "end": None, "duration": 6.0, "dataset_name": "charades",
                },
                {
                    "path": "./videos/b.mp4", "question": "a person runs.", "answer": "early",
                    "start": None, "end": None, "duration": 6.0, "dataset_name": "charades",
                },
            ]
        },
        [
            Record(
                [f"user: [videos/b.mp4]{moment_question('a person sits')}"], [1.5, 2.5], "tiou",
                {"duration": 6.0, "sentence": "a person sits."},
            )
        ],
        media=["videos/b.mp4"],
        dropped=["is no 'start-end'"],
    ),
    Dataset(
        "nextgqa",
        {
            "nextgqa_val.json": [
                {
                    "id": "1_7", "video": "0001/1.mp4", "question": "why does he stop",
                    "options": ["(A) to rest", "(B) to eat"], "duration": 6,
                    "glue": [[1.0, 2.0], [3.0, 4.5]], "type": "CW", "answer": "(B)",
                }
            ]
        },
        [
            Record(
                ["user: [0001/1.mp4]why does he stop\nA. to rest\nB. to eat"], "B", "choice",
                {
                    "source_id": "1_7", "options": ["to rest", "to eat"], "duration": 6,
                    "glue": [[1.0, 2.0], [3.0, 4.5]], "type": "CW",
                },
            )
        ],
        media=["0001/1.mp4"],
    ),
    Dataset(
        "open_r1_video",
        {
            "train.jsonl": [
                {
                    "video": "videos/c.mp4", "problem": "Which way? A. left B. right",
                    "solution": "<answer>B.</answer>", "original_question": "Which way?",
                    "original_answer": "right",
                }
            ]
        },
        [
            Record(
                ["user: [videos/c.mp4]Which way? A. left B. right"], "B", "choice",
                {"original_question": "Which way?", "original_answer": "right"},
            )
        ],
        media=["videos/c.mp4"],
    ),
    Dataset(
        "video_r1",
        {
            "Video-R1-COT.json": [
                {
                    "problem_id": 1, "problem": "Which way?", "data_type": "video",
                    "problem_type": "multiple choice", "options": ["A. left", "B. right"],
                    "process": "<think>It goes right.</think>", "path": "./videos/d.mp4",
                    "solution": "<answer>B</answer>", "data_source": "made",
                },
                {
                    "problem_id": 2, "problem": "How many dots?", "data_type": "image",
                    "problem_type": "numerical", "options": [], "process": "",
                    "solution": "<answer>4</answer>", "path": "./images/d.png",
                },
                {
                    "problem_id": 3, "problem": "<image 1> What is written?", "data_type": "video",
                    "problem_type": "OCR", "options": [], "process": "", "path": "./videos/d.mp4",
                    "image_path": "./images/d.png", "solution": "<answer>STOP HERE</answer>",
                },
                {
                    "problem_id": 4, "problem": "Describe it.", "data_type": "image",
                    "problem_type": "free-form", "options": [], "process": "",
                    "solution": "<answer>a bar that moves</answer>", "path": "./images/d.png",
                },
                {
                    "problem_id": 5, "problem": "How wide is it?", "data_type": "image",
                    "problem_type": "regression", "options": [], "process": "",
                    "solution": "<answer>2.5</answer>", "path": "./images/d.png",
                },
                {
                    "problem_id": 6, "problem": "When?", "data_type": "video", "options": [],
                    "problem_type": "spatial-temporal grounding", "path": "./videos/d.mp4",
                    "solution": '<answer>{"time": [1.5, 3.0], "boxes": {"2": [4, 5, 20, 30]}}'
                    "</answer>",
                },
                {
                    "problem_id": 7, "problem": "When?", "data_type": "video", "options": [],
                    "problem_type": "temporal grounding", "path": "./videos/d.mp4",
                    "solution": "<answer>[1.5, 3.0]",
                },
                {
                    "problem_id": 8, "problem": "Prove it.", "data_type": "image", "options": [],
                    "problem_type": "proof", "path": "./images/d.png",
                    "solution": "<answer>so</answer>",
                },
            ]
        },
        [
            Record(
                [
                    "user: [videos/d.mp4]Which way?\nA. left\nB. right",
                    "assistant: <think>It goes right.</think><answer>B</answer>",
                ],
                "B", "choice",
                {"problem_id": 1, "options": ["left", "right"], "data_source": "made"},
            ),
            Record(["user: [images/d.png]How many dots?"], "4", "numeric", {"problem_id": 2}),
            Record(
                ["user: [videos/d.mp4][images/d.png] What is written?"], "STOP HERE", "ocr",
                {"problem_id": 3},
            ),
            Record(
                ["user: [images/d.png]Describe it."], "a bar that moves", "rouge",
                {"problem_id": 4},
            ),
            Record(["user: [images/d.png]How wide is it?"], "2.5", "regression", {"problem_id": 5}),
            Record(
                ["user: [videos/d.mp4]When?"], [1.5, 3.0], "tiou",
                {"problem_id": 6, "boxes": {"2": [4, 5, 20, 30]}},
            ),
        ],
        media=["videos/d.mp4", "images/d.png"],
        dropped=["has no <answer> tag", "problem_type 'proof'"],
    ),
]  # fmt: skip

ANY = [
    Dataset(
        "easyr1",
        {
            "train.jsonl": [
                {"problem": "<image>How many?", "images": ["images/1.png"], "answer": "3"},
                {"problem": "<video>How often?", "videos": ["videos/1.mp4"], "answer": "2"},
                {"problem": "What is 1 + 1?", "answer": "2"},
                {"problem": "<image>How many?", "images": ["images/none.png"], "answer": "3"},
                {"problem": "<image><image>?", "images": ["images/1.png"], "answer": "3"},
            ]
        },
        [
            Record(["user: [images/1.png]How many?"], "3", "math"),
            Record(["user: [videos/1.mp4]How often?"], "2", "math"),
            Record(["user: What is 1 + 1?"], "2", "math"),
        ],
        media=["images/1.png", "videos/1.mp4"],
        dropped=["'images/none.png' does not exist", "2 <image> placeholder(s)"],
    ),
    Dataset(
        "trl",
        {
            "train.parquet": [
                {
                    "prompt": [{"role": "user", "content": "How many?"}],
                    "image": embedded("cups.png"), "solution": "<answer>5</answer>",
                    "task": "count",
                }
            ]
        },
        [Record(["user: [cups.png]How many?"], "5", "count")],
    ),
    Dataset(
        "openrlhf",
        {
            "train.jsonl": [
                {"prompt": "<image>How many?", "images": ["images/2.png"], "label": "5"},
                {
                    "prompt": json.dumps([{"role": "user", "content": "What is 2 + 3?"}]),
                    "label": "5",
                },
            ]
        },
        [
            Record(["user: [images/2.png]How many?"], "5", "math"),
            Record(["user: What is 2 + 3?"], "5", "math"),
        ],
        media=["images/2.png"],
    ),
    Dataset(
        "sharegpt",
        {
            "mllm_made.json": [
                {
                    "messages": [
                        {"role": "user", "content": "<image>Who is it?"},
                        {"role": "assistant", "content": "A sailor."},
                        {"role": "user", "content": "And here?<image>"},
                        {"role": "assistant", "content": "A cook."},
                    ],
                    "images": ["made/1.jpg", "made/2.jpg"],
                },
                {
                    "messages": [
                        {"role": "user", "content": "<video>What moves?"},
                        {"role": "assistant", "content": "A bar."},
                    ],
                    "videos": ["made/1.mp4"],
                },
            ]
        },
        [
            Record(
                [
                    "user: [made/1.jpg]Who is it?", "assistant: A sailor.",
                    "user: And here?[made/2.jpg]", "assistant: A cook.",
                ]
            ),
            Record(["user: [made/1.mp4]What moves?", "assistant: A bar."]),
        ],
        media=["made/1.jpg", "made/2.jpg", "made/1.mp4"],
    ),
    Dataset(
        "r1_onevision",
        {
            "train.jsonl": [
                {
                    "id": "1", "image": base64.b64encode(picture("graph.png")).decode(),
                    "conversations": [
                        {"from": "human", "value": "<image>What is the slope?"},
                        {"from": "gpt", "value": "<think>Two up.</think><answer>2</answer>"},
                    ],
                },
                {
                    "id": "2", "image": None,
                    "conversations": [
                        {"from": "human", "value": "Explain slopes."},
                        {"from": "gpt", "value": "A slope is a ratio. " * 20},
                    ],
                },
            ]
        },
        [
            Record(
                [
                    "user: [graph.png]What is the slope?",
                    "assistant: <think>Two up.</think><answer>2</answer>",
                ],
                "2", "math", {"source_id": "1"},
            ),
            Record(
                ["user: Explain slopes.", f"assistant: {'A slope is a ratio. ' * 20}"],
                meta={"source_id": "2"},
            ),
        ],
    ),
    Dataset(
        "vlm_r1_multi_image",
        {
            "gui_multi-image.jsonl": [
                {
                    "id": 1, "image": ["before.png", "after.png"],
                    "conversations": [
                        {"from": "human", "value": "What went wrong?"},
                        {"from": "gpt", "value": "No response"},
                    ],
                }
            ]
        },
        [
            Record(
                ["user: [before.png][after.png]What went wrong?", "assistant: No response"],
                "No response", "exact", {"source_id": 1},
            )
        ],
        media=["before.png", "after.png"],
    ),
]  # fmt: skip

STEPS = [
    Dataset(
        "prm800k",
        {
            "phase2_train.jsonl": [
                {
                    "question": {"problem": "1 + 1?", "ground_truth_answer": "2"},
                    "label": {
                        "steps": [
                            {
                                "completions": [
                                    {"text": "Bad.", "rating": -1}, {"text": "Hm.", "rating": 0},
                                ],
                                "human_completion": None, "chosen_completion": 1,
                            },
                            {
                                "completions": [{"text": "No.", "rating": -1}],
                                "human_completion": {"text": "Add them."},
                                "chosen_completion": None,
                            },
                            {
                                "completions": [{"text": "It is 3.", "rating": -1}],
                                "human_completion": None, "chosen_completion": None,
                            },
                            {
                                "completions": [{"text": "After.", "rating": 1}],
                                "human_completion": None, "chosen_completion": 0,
                            },
                        ],
                        "finish_reason": "found_error",
                    },
                },
                {
                    "question": {"problem": "2 + 1?", "ground_truth_answer": "3"},
                    "label": {"steps": [], "finish_reason": "bad_problem"},
                },
            ]
        },
        [
            Record(
                ["user: 1 + 1?"], "2", None,
                {
                    "completions": ["Hm.", "Add them.", "It is 3."], "labels": [1.0, 1.0, 0.0],
                },
            )
        ],
        dropped=["no step has a label"],
    ),
    Dataset(
        "math_shepherd",
        {
            "math-shepherd.jsonl": [
                {
                    "input": "5 - 2? Step 1: 5 - 2 is 3. ки\nStep 2: So it is 4. ки",
                    "label": "5 - 2? Step 1: 5 - 2 is 3. +\nStep 2: So it is 4. -",
                    "task": "GSM8K",
                },
                {
                    "input": "5 - 2? Step 1: It is 3. ки", "label": "Step 1: It is 3. +",
                    "task": "GSM8K",
                },
            ]
        },
        [
            Record(
                ["user: 5 - 2?"], None, None,
                {
                    "completions": ["Step 1: 5 - 2 is 3.", "Step 2: So it is 4."],
                    "labels": [1.0, 0.0],
                },
            )
        ],
        dropped=["input and label are not the same text"],
    ),
    Dataset(
        "visualprm",
        {
            "geometry.jsonl": [
                {
                    "image": "a.png", "question": "<image>\nHow long?", "answer": "5",
                    "response": "It is short.\n\nIt is 5.",
                    "steps_with_score": [
                        {"step": "It is short.", "score": 0.25, "num_mc_correct": 4},
                        {"step": "It is 5.", "score": 1, "num_mc_correct": 16},
                    ],
                }
            ]
        },
        [
            Record(
                ["user: [a.png]How long?"], "5", None,
                {"completions": ["It is short.", "It is 5."], "labels": [0.25, 1.0]},
            )
        ],
        media=["a.png"],
    ),
]  # fmt: skip

DATASETS = [*MATHEMATICS, *COUNTING, *BOXES, *VIDEOS, *ANY, *STEPS]
