"""Reward models on ranks of their own: the numbers of one process, and no model in the driver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mmr1.config import Config
from mmr1.config.checks import problems_of
from mmr1.data.record import read_records
from mmr1.data.responses import group_of_responses
from mmr1.trainer.distributed.reward_ranks import reward_model_values
from mmr1.trainer.models.scalar_model import HEAD_FILE
from mmr1.trainer.sampling.reward_models import reward_model_paths
from mmr1.vision.families.loading import load_family


@pytest.fixture(scope="module")
def judge(tiny_model, tmp_path_factory) -> Path:
    """A reward model with a head of random numbers."""
    path = tmp_path_factory.mktemp("models") / "judge"
    shutil.copytree(tiny_model, path)
    size = json.loads((path / "config.json").read_text())["text_config"]["hidden_size"]
    generator = torch.Generator().manual_seed(0)
    head = {"weight": torch.randn(1, size, generator=generator), "bias": torch.ones(1)}
    save_file(head, path / HEAD_FILE)
    return path


def config_of(tiny_model: Path, judge: Path | None, **sections: object) -> Config:
    functions = {"judge": {"type": "reward_model", "path": str(judge)}}
    tree = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"num_workers": 0},
        "rollout": {"engine": "hf"},
        "trainer": {"threads": 1, "max_tokens_per_gpu": 200},
        **({"rewards": functions} if judge else {}),
    }
    for name, keys in sections.items():
        tree[name] = {**tree.get(name, {}), **keys}
    return Config.model_validate(tree)


@pytest.fixture
def ray_of_this_test() -> Iterator[None]:
    import ray

    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, **options)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_two_ranks_score_as_one_process_and_the_driver_holds_no_model(
    tiny_model, judge, mixed, tmp_path, monkeypatch, request
):
    pytest.importorskip("ray", reason="Ray is not installed")
    request.getfixturevalue("ray_of_this_test")
    family = load_family(str(tiny_model))
    groups = [
        group_of_responses(family, family.render_prompt(sample), ["seven", "it is seven", "no"][i:])
        for i, sample in enumerate(read_records(mixed)[:3])
    ]
    with reward_model_values(config_of(tiny_model, judge)) as values:
        alone = values[str(judge)](groups)
    assert alone.std() > 0

    def refused(*args: object) -> None:
        raise AssertionError("a model is built in the driver")

    monkeypatch.setattr("mmr1.trainer.sampling.reward_models.build_packed_model", refused)
    spread = config_of(
        tiny_model,
        judge,
        resources={"ranks": 2, "reward_ranks": 2},
        trainer={"output_dir": str(tmp_path)},
    )
    with reward_model_values(spread) as values:
        torch.testing.assert_close(values[str(judge)](groups), alone, atol=1e-5, rtol=0)


def test_ranks_for_no_reward_model_are_refused(tiny_model, judge):
    wide = {"ranks": 2, "reward_ranks": 2}
    assert problems_of(config_of(tiny_model, judge, resources=wide)) == []
    for config in (
        config_of(tiny_model, None, resources=wide),
        config_of(tiny_model, judge, resources={"reward_ranks": 2}),
    ):
        (problem,) = problems_of(config)
        assert "resources.reward_ranks=2" in problem


def test_a_path_without_a_reward_model_is_refused(tiny_model):
    with pytest.raises(ValueError, match=r"judge\.path .* is not a reward model"):
        reward_model_paths(config_of(tiny_model, tiny_model))
