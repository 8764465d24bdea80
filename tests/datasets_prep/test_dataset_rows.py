"""Every converter on rows in its dataset's form: records, media, golds, and what is dropped."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datasets_prep.conversion import QUARANTINE, RECORDS, convert
from datasets_prep.converters import CONVERTERS
from datasets_prep.converters.rows import mapping
from datasets_prep.manifest import read_manifest
from datasets_prep.validate import validate
from mmr1.config import ScoringConfig, read_rewards
from mmr1.data.forms.form import CHANGED
from mmr1.data.record import read_records
from mmr1.rewards import RewardItem, build_composite_reward
from mmr1.rewards.kind import reward_of_task
from mmr1.types import MediaRef, Sample
from tests.datasets_prep.dataset_rows import DATASETS
from tests.datasets_prep.dataset_rows.dataset import SIZE, Dataset, picture
from tests.rewards.helpers import think


def media_names(dataset: Dataset, folder: Path) -> dict[str, str]:
    """The name of every medium by the digest of its bytes, as the expected messages write it."""
    text = "".join(message for record in dataset.records for message in record.messages)
    names = re.findall(r"\[([^]]+\.(?:png|jpg|mp4|json))\]", text)
    contents = {
        n: (folder / n).read_bytes() if (folder / n).exists() else picture(n) for n in names
    }
    return {hashlib.sha256(content).hexdigest(): name for name, content in contents.items()}


def written(sample: Sample, names: dict[str, str]) -> list[str]:
    """The messages as the table writes them."""

    def piece(part: Any) -> str:
        if isinstance(part, MediaRef):
            return f"[{names[hashlib.sha256(part.read()).hexdigest()]}]"
        return part.text

    return [f"{m.role}: {''.join(piece(part) for part in m.parts)}" for m in sample.messages]


@pytest.fixture(scope="module")
def score() -> Iterator[Any]:
    functions = {"auto": {}}
    with build_composite_reward(read_rewards(functions), ScoringConfig(timeout_s=60.0)) as scorer:
        yield scorer.score


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda d: f"{d.converter}-{min(d.files)}")
def test_every_dataset_converts(tmp_path: Path, dataset: Dataset, score: Any) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    dataset.write(folder)
    name, _, mapped = dataset.converter.partition(" --map ")
    convert(name, folder, output, workers=1, columns=mapping(mapped) if mapped else None)
    samples = read_records(output / RECORDS)
    names = media_names(dataset, folder)
    assert [written(sample, names) for sample in samples] == [
        list(record.messages) for record in dataset.records
    ]
    for sample, record in zip(samples, dataset.records, strict=True):
        assert (sample.answer, sample.task) == (record.answer, record.task)
        others = {n: v for n, v in sample.meta.items() if n not in ("row", CHANGED)}
        assert others == record.meta
        assert sample.source == name
        assert {ref.size for ref in sample.media} <= {SIZE}
        assert all(ref.options == record.options for ref in sample.media)
    assert validate(output) == (len(samples), [])
    check_dropped(dataset, output)
    check_golds(samples, score)


def check_dropped(dataset: Dataset, output: Path) -> None:
    lines = (output / QUARANTINE).read_text().split("\n")[:-1]
    reasons = [json.loads(line)["reason"] for line in lines]
    for reason, part in zip(reasons, dataset.dropped, strict=True):
        assert part in reason
    manifest = read_manifest(output)
    assert manifest is not None
    assert manifest["changed"] == dataset.changed


def check_golds(samples: list[Sample], score: Any) -> None:
    """Whoever answers with the gold is paid in full, by the reward of the record's task."""
    checked = [s for s in samples if s.answer is not None and reward_of_task(s.task)]
    answers = [s.answer if isinstance(s.answer, str) else json.dumps(s.answer) for s in checked]
    items = [RewardItem(think(a), s) for a, s in zip(answers, checked, strict=True)]
    for reward in score(items) if items else []:
        assert (reward.value, reward.error) == (pytest.approx(1), None)


def test_every_converter_has_rows() -> None:
    # 'rows' is told its columns: tests/datasets_prep/test_rows.py.
    assert {dataset.converter for dataset in DATASETS} >= set(CONVERTERS.names()) - {"rows"}
