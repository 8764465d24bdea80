"""Gold answers that nobody can read: these rows are left out, up to the share allowed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.rewards import build_composite_reward
from mmr1.trainer.inputs import Inputs, check_inputs

ROWS = 10
BAD = (3, 7)


@pytest.fixture
def inputs(tiny_model, digits, tmp_path) -> Callable[[float], Inputs]:
    lines = (digits / "rl.jsonl").read_text().splitlines()[:ROWS]
    rows = [json.loads(line) for line in lines]
    for place in BAD:
        rows[place]["answer"] = "many"
    records = tmp_path / "rl.jsonl"
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def checked(max_bad_fraction: float) -> Inputs:
        config = Config(
            model={"path": str(tiny_model), "dtype": "float32"},
            data={
                "train": str(records),
                "media_root": str(digits),
                "max_bad_fraction": max_bad_fraction,
            },
            rewards={"count": {}},
            trainer={
                "output_dir": str(tmp_path / "run"),
                "validation": {"data": str(records)},
            },
        )
        with build_composite_reward(config.rewards, config.scoring) as rewards:
            return check_inputs(config, rewards, train=True)

    return checked


def test_rows_without_a_readable_gold_are_left_out_and_named(inputs, digits, tmp_path):
    found = inputs(0.2)
    ids = [sample.id for sample in read_records(tmp_path / "rl.jsonl", digits)]
    bad = [ids[place] for place in BAD]
    (train,) = found.sources.values()
    for samples in (train, found.held_out):
        assert [sample.id for sample in samples] == [name for name in ids if name not in bad]
    for key in ("train", "eval"):
        dropped = found.quarantines[key].dropped
        assert [entry["row"] for entry in dropped] == bad
        assert all("the answer 'many' cannot be used: count" in e["reason"] for e in dropped)


def test_more_than_the_share_allowed_end_the_run(inputs):
    with pytest.raises(ValueError, match=r"2 of 10 rows of \S+ cannot be used.*many"):
        inputs(0.1)
    with pytest.raises(
        ValueError,
        match=r"'many' cannot be used: count.*\(1 more like it\).*data\.max_bad_fraction",
    ):
        inputs(0.0)
