"""Presets fill advantage, loss and filter_groups, and are nothing but values."""

from __future__ import annotations

import pytest

from mmr1.config import AlgorithmConfig, Config
from mmr1.config.checks import problems_of, warnings_of
from mmr1.config.file import config_from, redacted
from mmr1.config.presets import PARTS, PRESETS

REQUIRED = {
    "process_grpo": {"advantage": {"step_rewards": "steps.py:f"}},
    "on_policy_distillation": {"advantage": {"teacher": {"path": "t"}}},
    "kl_cov": {"ppo_epochs": 2},
}
"""What a preset leaves to the user."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_whole_and_reads_back_as_the_same(name):
    given = {"name": name, **REQUIRED.get(name, {})}
    config = config_from({"model": {"path": "m"}, "algorithm": given})
    assert config.algorithm == AlgorithmConfig(**given)
    assert AlgorithmConfig.model_validate(config.algorithm.model_dump()) == config.algorithm
    assert config_from(redacted(config)) == config
    assert warnings_of(config) == []
    for part in PARTS:
        section, values = getattr(config.algorithm, part), PRESETS[name][part]
        for key, value in (values or {}).items():
            assert getattr(section, key) == value


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_needs_no_more_than_is_said_here(name):
    if name not in REQUIRED:
        assert problems_of(Config(model={"path": "m"}, algorithm={"name": name})) == []
        return
    with pytest.raises(ValueError, match=r"is missing|does not differ"):
        config_from({"model": {"path": "m"}, "algorithm": {"name": name}})


def test_a_section_of_another_type_keeps_nothing_of_the_presets():
    algorithm = AlgorithmConfig(name="dapo", loss={"type": "sapo"})
    assert algorithm.loss.aggregation == "seq-mean-token-mean"
    assert AlgorithmConfig(name="dapo", loss="gspo").loss.type == "gspo"
    changed = AlgorithmConfig(name="dapo", loss={"clip_ratio_high": 0.3}).loss
    assert (changed.aggregation, changed.clip_ratio_high) == ("token-mean", 0.3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", ("grpo", "ppo", "token-mean", 0.2, 0.2, None)),
        ("dr_grpo", ("grpo", "ppo", "seq-mean-token-sum-norm", 0.2, 0.2, None)),
        ("dapo", ("grpo", "ppo", "token-mean", 0.2, 0.28, "resample")),
        ("gspo", ("grpo", "gspo", "seq-mean-token-mean", 3e-4, 4e-4, None)),
        ("cispo", ("grpo", "cispo", "token-mean", 1.0, 4.0, None)),
        ("clip_cov", ("grpo", "clip_cov", "token-mean", 1.0, 1.0, None)),
        ("rloo", ("rloo", "ppo", "token-mean", 0.2, 0.2, None)),
        ("ppo", ("gae", "ppo", "token-mean", 0.2, 0.2, None)),
    ],
)
def test_values_are_those_of_the_papers(name, expected):
    algorithm = AlgorithmConfig(name=name)
    loss, groups = algorithm.loss, algorithm.filter_groups
    assert expected == (
        algorithm.advantage.type,
        loss.type,
        loss.aggregation,
        loss.clip_ratio_low,
        loss.clip_ratio_high,
        groups and groups.type,
    )
