"""Questions about videos, and moments in them."""

from __future__ import annotations

from tests.datasets_prep.dataset_rows.dataset import SECONDS, Dataset, Record


def moment_question(sentence: str) -> str:
    return f'When does this happen: "{sentence}"? Give start and end.'


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
        dropped=["is not of the form 'start-end'"],
    ),
    Dataset(
        "vqa",
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
        "r1_v",
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
                    "user: [videos/d.mp4]Which way?Options:\nA. left\nB. right\n",
                    "assistant: <think>It goes right.</think>\n<answer>B</answer>",
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
