"""Counting and classes: CLEVR, Super-CLEVR, a folder per class."""

from __future__ import annotations

from tests.datasets_prep.dataset_rows.dataset import Dataset, Record, embedded

COUNTING = [
    Dataset(
        "r1_v --map task=count",
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
        "clevr",
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
        "clevr",
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
        "r1_v_eval",
        {
            "superclevr_test.jsonl": [
                {"image_path": "./images/s.png", "question": "How many?", "ground_truth": 4}
            ]
        },
        [Record(["user: [images/s.png]How many?"], 4, "count")],
        media=["images/s.png"],
    ),
    Dataset(
        "imagefolder",
        {"dog/notes.txt": "no picture"},
        [
            Record([f"user: [{name}/1.png]Which class does the picture show: ape, cat or dog?"],
                   name, "exact")
            for name in ("ape", "cat", "dog")
        ],
        media=["cover.png", "cat/1.png", "dog/1.png", "ape/1.png", "cat/more/1.png"],
        dropped=["a folder in the folder of a class", "in no folder of a class",
                 "is not a picture's"],
    ),
]  # fmt: skip
