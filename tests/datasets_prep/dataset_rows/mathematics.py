"""Mathematics with pictures: MATH-Vision, MathVerse, MathVista, MMK12 and others."""

from __future__ import annotations

import json

from tests.datasets_prep.dataset_rows.dataset import Dataset, Record, embedded

MATHEMATICS = [
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
                    "conversations": [{"role": "user", "content": "<image>Which of A to D?"}],
                },
            ]
        },
        [
            Record(["user: [imgs/a.png]Find x."], "3", "math", {"source_id": "a"}),
            Record(["user: [imgs/b.png]Which of A to D?"], "D", "choice", {"source_id": "b"}),
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
        "r1_v",
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
        "easyr1",
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
    Dataset(
        "mmmu",
        {
            "validation-00000.parquet": [
                {
                    "id": "validation_Biology_1", "question": "<image 1> Which is it?",
                    "options": "['a cat', 'an ant']", "image_1": embedded("bio.png"),
                    "question_type": "multiple-choice", "subfield": "Zoology", "answer": answer,
                }
                for answer in ("B", "?")
            ]
        },
        [
            Record(["user: [bio.png] Which is it?\nA. a cat\nB. an ant"], "B", "choice",
                   {"question_type": "multiple-choice", "subfield": "Zoology",
                    "options": ["a cat", "an ant"], "source_id": "validation_Biology_1"})
        ],
        dropped=["the answer is withheld"],
    ),
]  # fmt: skip
