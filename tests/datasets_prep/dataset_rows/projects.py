"""Datasets in the formats of other projects: EasyR1, TRL, OpenRLHF, ShareGPT, VLM-R1."""

from __future__ import annotations

import base64
import json

from tests.datasets_prep.dataset_rows.dataset import Dataset, Record, embedded, picture

PROJECTS = [
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
        "verl --map task=math",
        {
            "train.parquet": [
                {
                    "prompt": [
                        {"role": "system", "content": "Call image_zoom_in_tool."},
                        {"role": "user", "content": "<image>How many?"},
                    ],
                    "images": [embedded("cups.png")], "ability": "vqa",
                    "reward_model": {"style": "model", "ground_truth": "5"},
                }
            ]
        },
        [
            Record(
                ["system: Call image_zoom_in_tool.", "user: [cups.png]How many?"], "5", "math"
            )
        ],
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
        "vlm_r1",
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
        "vlm_r1 --map task=exact",
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
