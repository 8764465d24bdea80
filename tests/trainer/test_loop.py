"""Every algorithm through the real loop: rollouts, rewards, update, weights handed on."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from mmr1.config import Config
from mmr1.config.presets import PRESETS
from mmr1.config.rewards import weights_of
from mmr1.data.quarantine import Quarantine
from mmr1.data.sampler import MediaCheck, SampleLoader, Sampler
from mmr1.rewards import build_composite_reward
from mmr1.rollout.build import with_conversations
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.coefficients import Coefficients
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.forward import sequences
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.loop import train
from mmr1.trainer.models.critic import build_critic
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.reference import FrozenReference
from mmr1.trainer.runs.step import Step
from mmr1.trainer.sampling.dynamic_sampling import NoSignalError
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.sampling.step_rewards import build_step_rewards
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.algorithms.scored_groups import own_algorithm

# An untrained model writes noise: a reward that tells its completions apart all the same.
REWARD = "def reward(completion: str, answer) -> float:\n    return len(completion) % 7 / 7\n"
STEPS = (
    "def judge(completion, sample):\n"
    "    return [(len(completion) // 2, len(completion) % 3), (len(completion), 1.0)]\n"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "reward.py").write_text(REWARD)
    (folder / "steps.py").write_text(STEPS)
    (folder / "median.py").write_text(own_algorithm())
    return folder


def config_of(files: Path, rewards: dict[str, Any] | None = None, **algorithm: Any) -> Config:
    if algorithm["name"] == "kl_cov":
        algorithm["ppo_epochs"] = 2
    if algorithm["name"] == "process_grpo":
        algorithm["advantage"] = {"step_rewards": f"{files}/steps.py:judge"}
    noise: dict[str, Any] = {"noise": {"type": f"{files}/reward.py:reward", "sandbox": None}}
    return Config(
        model={"path": "tiny", "dtype": "float32"},
        data={"train_batch_size": 2},
        rollout={"engine": "hf", "n": 3, "max_response_length": 6},
        rewards=rewards or noise,
        scoring={"workers": 1},
        algorithm=algorithm,
        optimizer={"lr": 1e-3, "scheduler": {"type": "constant", "warmup_steps": 0}},
        trainer={"max_steps": 2},
    )


@pytest.fixture(scope="module")
def shared(tiny_model, files) -> Iterator[tuple[Any, ...]]:
    family = load_family(str(tiny_model))
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    media = MediaCache(family.prepare_media)
    with build_composite_reward(config_of(files, name="grpo").rewards) as scorer:
        yield family, model, media, scorer, tiny_model


def run(shared, samples, config: Config, scorer=None, engine=None) -> tuple[list[Step], Any, Any]:
    """The steps of a run, its model and its reference; ``engine`` makes one of a model."""
    family, start, media, noise, path = shared
    config = config.changed({"model.path": str(path)})
    model = copy.deepcopy(start)
    algorithm = build_algorithm(
        config.algorithm, config.rollout.max_response_length, weights_of(config.rewards)
    )
    inputs = ModelInputs(family, media)
    policy = PackedModel(model, inputs, Distribution(forbidden=inputs.family.forbidden_ids), 4096)
    reference = None
    if config.algorithm.kl is not None:
        reference = FrozenReference(policy, replace(policy, model=copy.deepcopy(model)))
    parts = TrainerComponents(
        loader=SampleLoader(Sampler(samples, 0), MediaCheck(media, Quarantine(0))),
        render=family.render_prompt,
        engine=engine(copy.deepcopy(model))
        if engine
        else HfEngine(model, family, media, shares_weights=True),
        rewards=RewardManager(scorer or noise, media, 0.0),
        algorithm=algorithm,
        policy=LocalPolicy(
            policy,
            algorithm,
            Optimizer(model, config.optimizer, 10),
            config.algorithm.ppo_epochs,
        ),
        reference=reference,
        coefficients=Coefficients(config.algorithm),
        media=media,
        steps=build_step_rewards(config, family, {}),
        critic=build_critic(config, inputs),
    )
    return list(train(config, parts)), model, reference


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


MORE = {"ppo_epochs": 2, "kl": {"coef": 0.1}}
PER_DECISION = {"type": "reinforce", "importance": "per_decision"}
WIDE = {"clip_ratio_low": 0.99, "clip_ratio_high": 100.0}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        # Distillation needs a teacher that differs: tests/algorithms/test_distillation.py.
        *((name, {}) for name in sorted(PRESETS) if name != "on_policy_distillation"),
        ("grpo", {"advantage": "median.py:median_baseline", "loss": "median.py:capped"}),
        *((name, MORE) for name in ("rloo", "gspo", "cispo", "reinforce_pp")),
        ("rloo", {"ppo_epochs": 2, "loss": PER_DECISION}),
        ("process_grpo", {"ppo_epochs": 2, "loss": PER_DECISION}),
        ("cispo", {"advantage": "gdpo", "rollout_correction": {"off_policy_mask_threshold": 0.5}}),
        ("dapo", {"loss": {"top_entropy_quantile": 0.5}}),
        (
            "ppo",
            {
                "ppo_epochs": 2,
                "advantage": {"critic": {"bootstrap_truncated": True}},
            },
        ),
        # Ratios of whole responses leave the usual clip after one such step: wide ones here.
        (
            "grpo",
            {
                "ppo_epochs": 2,
                "loss": {"type": "sequence_ppo", "clip_ratio_dual": 3.0, **WIDE},
            },
        ),
    ],
)
def test_every_algorithm_trains(shared, files, digit_samples, name, keys):
    own = {k: f"{files}/{v}" if ".py:" in str(v) else v for k, v in keys.items()}
    steps, model, _ = run(shared, digit_samples, config_of(files, name=name, **own))
    assert [step.number for step in steps] == [1, 2]
    for step in steps:
        assert all(math.isfinite(value) for value in step.metrics.values())
        assert step.metrics["grad_norm"] > 0
        assert len(step.scored) == 2
        assert len(step.advantages) == 6
    assert not same(model, shared[1])
    assert ("kl" in keys) == (steps[1].metrics["kl"] > 0)


def test_a_refreshed_reference_is_the_policy(shared, files, digit_samples):
    config = config_of(
        files, name="grpo", kl={"coef": 0.1, "reference": {"type": "moving", "sync_steps": 2}}
    )
    _, model, reference = run(shared, digit_samples, config)
    assert same(model, reference._own.model)
    config = config_of(files, name="grpo", kl={"coef": 0.1})
    _, model, reference = run(shared, digit_samples, config)
    assert same(reference._own.model, shared[1])
    assert not same(model, shared[1])


def test_a_reference_moves_part_of_the_way(shared, files, digit_samples):
    moving = {"type": "moving", "sync_steps": 2, "mixup_alpha": 0.25}
    config = config_of(files, name="grpo", kl={"coef": 0.1, "reference": moving})
    _, model, reference = run(shared, digit_samples, config)
    start, end = shared[1].state_dict(), model.state_dict()
    for name, weight in reference._own.model.state_dict().items():
        torch.testing.assert_close(weight, start[name] * 0.75 + end[name] * 0.25)


def test_adaptive_coefficients_are_logged(shared, files, digit_samples):
    keys = {
        "kl": {"coef": 0.1, "target": 0.5},
        "entropy": {"coef": 0.1, "target": 50.0},
    }
    steps, _, _ = run(shared, digit_samples, config_of(files, name="grpo", **keys))
    first, second = (step.metrics for step in steps)
    assert (first["kl_coef"], first["entropy_coef"]) == (0.1, 0.1)
    assert second["entropy_coef"] > 0.1  # the entropy is below its target
    assert second["kl_coef"] == pytest.approx(0.1 * 0.98)  # no KL yet in the first step


def test_dapo_stops_on_data_without_signal(shared, files, digit_samples):
    # An untrained model never answers: every reward is 0.
    config = config_of(files, {"format": {}}, name="dapo", filter_groups={"max_num_gen_batches": 2})
    with (
        build_composite_reward(config.rewards, config.scoring) as scorer,
        pytest.raises(NoSignalError, match="2 generation batches"),
    ):
        run(shared, digit_samples, config, scorer)


def test_a_prompt_that_comes_twice_in_a_step_is_sampled_anew(shared, digit_samples, files):
    config = config_of(files, name="grpo")
    ((first, second),) = [
        [[c.text for c in s.group.completions] for s in step.scored]
        for step in run(shared, digit_samples[:1], config)[0][:1]
    ]
    assert first != second


def test_a_profiler_shows_the_phases(shared, files, digit_samples):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(shared, digit_samples, config_of(files, name="grpo", kl={"coef": 0.1}))
    spans = {event.key: event.count for event in profile.key_averages() if "mmr1/" in event.key}
    phases = ("rollout", "reward", "experience", "update", "sync")
    work = ("forward", "backward", "optimizer")  # inside the update, one micro-batch a step
    assert spans == {f"mmr1/{name}": 2 for name in phases + work}  # two steps


def test_model_inputs_are_built_once_for_each_group_of_a_step(
    shared, digit_samples, files, monkeypatch
):
    """Old and reference log-probs, values, the critic's updates and three of the policy's."""
    built = []

    def counting(family, media, group):
        built.append(group)
        return group_input(family, media, group)

    monkeypatch.setattr(sequences, "group_input", counting)
    config = config_of(files, name="ppo", ppo_epochs=3, kl={"type": "loss", "coef": 0.1})
    config = config.changed({"trainer.max_steps": 1})
    (step,), _, _ = run(shared, digit_samples, config)
    assert [id(group) for group in built] == [id(scored.group) for scored in step.scored]
    assert len(built) == config.data.train_batch_size


def test_conversations_are_sampled_ahead_of_the_update(shared, digit_samples, files):
    """With the weights of the update before the last, and twice alike."""
    family, *others = shared
    brief = replace(family, stop_ids=tuple(range(100, 200)))  # turns of about six tokens
    plugins = Path(__file__).parents[1] / "environments" / "plugins.py"
    environment = {
        "tools": ["zoom"],
        "parser": f"{plugins}:always_zoom",
        "max_turns": 3,
        "max_tokens_per_turn": 30,
        "workers": 1,
    }
    config = config_of(files, name="grpo").changed(
        {
            "rollout.engine": "vllm",
            "rollout.max_off_policy_steps": 1,
            "rollout.max_response_length": 160,
            "trainer.max_steps": 3,
            "environment": environment,
        }
    )

    def engine(model):
        own = HfEngine(model, brief, others[1])
        made.append(with_conversations(config, own, brief, others[1]))
        return made[-1]

    made: list[Any] = []
    try:
        runs = [run((brief, *others), digit_samples, config, engine=engine)[0] for _ in range(2)]
    finally:
        for conversing in made:
            conversing.close()
    for step, other in zip(*runs, strict=True):
        completions = [c for s in step.scored for c in s.group.completions]
        assert {c.policy_version for c in completions} == {max(0, step.number - 2)}
        assert max(c.turns for c in completions) == 3
        again = [c for s in other.scored for c in s.group.completions]
        assert [c.token_ids.tolist() for c in again] == [c.token_ids.tolist() for c in completions]
    stats = [step.metrics for step in runs[0]]
    assert [line["rollout/staleness"] for line in stats] == [0, 1, 1]
    gaps = [line["rollout/logprob_diff_after_image"] for line in stats]
    assert gaps[0] < 1e-4 < gaps[1]
