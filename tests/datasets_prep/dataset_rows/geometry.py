"""Geometry: Geometry3K, GEOQA."""

from __future__ import annotations

from tests.datasets_prep.dataset_rows.dataset import Dataset, Record, embedded

GEOMETRY = [
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
        dropped=["the answer 'E' is not a letter of the 4 choices"],
    ),
    Dataset(
        "easyr1",
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
        "verl",
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
        "r1_v",
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
        "r1_v_eval",
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
]  # fmt: skip
