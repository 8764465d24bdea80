"""Labelled steps for reward models: PRM800K, Math-Shepherd, VisualPRM."""

from __future__ import annotations

from tests.datasets_prep.dataset_rows.dataset import Dataset, Record

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
