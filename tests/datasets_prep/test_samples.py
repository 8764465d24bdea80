"""Real rows of public datasets: each folder converts, or says why a row cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets_prep.conversion import QUARANTINE, convert
from datasets_prep.manifest import read_manifest
from datasets_prep.validate import validate
from tests.jsonl import read_jsonl
from tests.vision.media import SHARED

pytestmark = pytest.mark.skipif(SHARED is None, reason="no sample data beside this checkout")

# Converter, input, rows in, records out, dropped by reason. Most of the media are not there.
MISSING = "media file '…' does not exist under …"
ABSENT = "media file '…' does not exist under …, nor does the end of its path"
NO_VIDEO = "the video '…' (.mpN, .avi, .mkv, .webm) is not under …"
BACKWARDS = "the moment ends (N s) before it begins (N s)"
CASES = [
    ("geometry3k", "geometry3k_intergps", 5, 5, {}),
    ("math_vision", "math_vision", 19, 19, {}),
    ("lmm_r1", "lmm_r1_messages", 1, 1, {}),
    ("sharegpt", "sharegpt_llamafactory", 6, 6, {}),
    ("clevr", "superclevr_counting_r1v/output/superCLEVR_questions_5_subset.json", 42, 42, {}),
    ("mmk12", "mmk12_mm_eureka", 24, 18, {"several answers in one row": 5}),
    ("mathverse", "mathverse", 18, 14, {MISSING: 3}),
    ("r1_v_eval", "geoqa_r1v/geoqa_test_prompts_subset.jsonl", 32, 0, {MISSING: 32}),
    ("r1_v_eval", "superclevr_counting_r1v/superclevr_test200_counting_problems_subset.jsonl",
     30, 0, {MISSING: 30}),
    ("rec", "vlm_r1_rec", 1, 0, {MISSING: 1}),
    ("vlm_r1", "vlm_r1_gui_multi_image", 20, 0, {MISSING: 20}),
    ("video_r1", "video_r1/eval_format", 22, 0, {MISSING: 22}),
    ("video_r1", "video_r1/hf_card_cot_row.json", 1, 0, {MISSING: 1}),
    ("video_r1", "charades_sta/easyvideor1_charades_sta_corrupt_subset.json", 5, 0,
     {"the solution '…' has no <answer> tag": 5}),
    ("video_r1", "other_grounding/stvg_subset.json", 6, 0, {MISSING: 6}),
    ("vqa", "other_grounding/nextgqa_val_subset.json", 8, 0, {MISSING: 8}),
    ("charades_sta", "charades_sta/train_subset.json", 32, 0, {NO_VIDEO: 29, BACKWARDS: 3}),
    ("charades_sta", "charades_sta/charades_test_subset.json", 18, 0, {NO_VIDEO: 18}),
    ("charades_sta", "charades_sta/charades_test_ood_subset.json", 14, 0, {NO_VIDEO: 14}),
    ("charades_sta", "charades_sta/novel_word_subset.json", 5, 0, {NO_VIDEO: 5}),
    ("time_r1", "charades_sta/timer1_train_2k5_subset.json", 8, 0, {MISSING: 8}),
    ("tvgbench", "charades_sta/timer1_tvgbench_subset.json", 8, 0, {MISSING: 8}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "source", "rows", "records", "dropped"), CASES, ids=lambda v: str(v).rpartition("/")[2]
)
def test_every_folder_converts_or_says_why(
    tmp_path: Path, name: str, source: str, rows: int, records: int, dropped: dict[str, int]
) -> None:
    output = tmp_path / "out"
    folder = SHARED / "samples" / source
    if records:
        convert(name, folder, output, workers=1)
        assert validate(output) == (records, [])
    else:
        with pytest.raises(ValueError, match=f"none of the {rows} rows could be converted"):
            convert(name, folder, output, workers=1)
    manifest = read_manifest(output)
    assert manifest is not None
    assert manifest["counts"] == {"rows": rows, "records": records, "dropped": rows - records}
    for reason, count in dropped.items():
        assert manifest["dropped"].get(reason, 0) == count
    quarantined = read_jsonl(output / QUARANTINE)
    assert len(quarantined) == rows - records
    assert all(entry["reason"] and entry["row"].startswith(str(folder)) for entry in quarantined)
