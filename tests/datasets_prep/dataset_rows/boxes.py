"""Boxes: RefCOCO, COCO, VLM-R1, GOT-10k."""

from __future__ import annotations

import json

from tests.datasets_prep.dataset_rows.dataset import Dataset, Record, embedded

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
        "rec",
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
        "vlm_r1 --map task=iou",
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
        dropped=["'Nowhere.'"],
    ),
]  # fmt: skip
