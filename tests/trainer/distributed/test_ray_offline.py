"""Fine-tuning and evaluation on Ray, from start to end, against one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mmr1.evaluation.benchmarks import run_evaluations
from mmr1.trainer.sft import run_sft
from tests.trainer.distributed.ray_runs import (
    answered,
    assert_same,
    config_of,
    ray_of_this_machine,
)

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """One cluster for all runs."""
    with ray_of_this_machine():
        yield


@pytest.fixture(scope="module")
def records(mixed) -> Path:
    return answered(mixed)


@pytest.mark.slow
def test_fine_tuning_goes_on_with_another_number_of_ranks(tiny_model, records, tmp_path):
    saved = {"checkpoints": {"async_save": True, "save_steps": 1}}
    batches = {"train_batch_size": 5}
    for steps, ranks in ((2, 2), (4, 1)):
        run = tmp_path / "run"
        many = config_of(tiny_model, records, run, steps, ranks, data=batches, trainer=saved)
        run_sft(many, resume=True)
    run_sft(config_of(tiny_model, records, tmp_path / "whole", 4, 1, data=batches))
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_an_evaluation_uses_all_engines(tiny_model, records, tmp_path):
    for engines in (1, 2):
        run_evaluations(
            config_of(
                tiny_model,
                records,
                tmp_path,
                1,
                1,
                eval={
                    "data": str(records),
                    "sampled": {"n": 2},
                    "output_dir": str(tmp_path / str(engines)),
                },
                resources={"engines": engines},
            )
        )
    one, two = (sorted((tmp_path / n / "completions.jsonl").read_text().splitlines()) for n in "12")
    assert len(one) == 16 * 3
    assert one == two
