"""The advantages and losses: each is built from its section, and goes with each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mmr1.algorithms import advantage as advantages
from mmr1.algorithms import loss as losses
from mmr1.algorithms.interface import AdvantageInputs, LossInputs
from mmr1.config import AlgorithmConfig, Config
from mmr1.config.checks import problems_of
from mmr1.config.presets import PRESETS
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs, TokenScores
from mmr1.trainer.models.loading import build_packed_model
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Experience, Reward, ScoredGroup, Span, Status
from tests.algorithms.required import config_of, settings_of
from tests.config.keys import Key, every_key
from tests.paths import REPOSITORY

OWN = """
from mmr1.algorithms import Advantage, Loss

def advantage(scale):
    return Advantage(lambda x: scale * x.rewards.flatten()[:, None] * x.mask)

def loss(scale):
    return Loss(lambda x: -scale * x.advantages * x.logprobs)
"""


def run_python(code: str, *arguments: Path) -> str:
    """What a fresh process prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout


def test_reading_a_configuration_loads_no_torch():
    code = """
import sys
from mmr1.config.file import load_config
from mmr1.config.presets import PRESETS
overrides = {
    "process_grpo": ["algorithm.advantage.step_rewards=x.py:f"],
    "on_policy_distillation": ["algorithm.advantage.teacher=model",
                               "algorithm.advantage.teacher.path=teacher"],
    "kl_cov": ["algorithm.ppo_epochs=2"],
}
for name in PRESETS:
    load_config(None, ["model.path=a", f"algorithm.name={name}", *overrides.get(name, [])])
    heavy = {"torch", "transformers", "ray", "vllm"} & set(sys.modules)
    assert not heavy, f"{name} loads {heavy}"
print(len(PRESETS))
"""
    assert int(run_python(code)) == len(PRESETS)


def pair(advantage: str, loss: str, own: str = "own.py") -> AlgorithmConfig:
    """An advantage under a loss, with what the two need."""
    parts: dict[str, dict[str, Any]] = {}
    for part, kind, name in (("advantage", advantages, advantage), ("loss", losses, loss)):
        if name == "own":
            parts[part] = {"type": f"{own}:{part}", "scale": 2.0}
        else:
            parts[part] = {"type": name, **settings_of(kind, name)}
    return AlgorithmConfig(**parts, ppo_epochs=2)


def is_refused(algorithm: AlgorithmConfig) -> bool:
    """Does the table of combinations refuse it?"""
    turns = {"tools": ["zoom"]} if algorithm.advantage.type == "gigpo" else None
    config = Config(model={"path": "m"}, algorithm=algorithm.model_dump(), environment=turns)
    return bool(problems_of(config))


ADVANTAGES, LOSSES = [*advantages.parts, "own"], [*losses.parts, "own"]
PAIRS = [(a, b) for a in ADVANTAGES for b in LOSSES]
ALLOWED = [names for names in PAIRS if not is_refused(pair(*names))]


class Given:
    """A reference or a critic of one value for each token."""

    def __init__(self, value: float) -> None:
        self._value = value

    def logprobs(self, groups) -> torch.Tensor:
        lengths = [len(c.token_ids) for g in groups for c in g.completions]
        return torch.full((len(lengths), max(lengths)), self._value)

    values = logprobs


def complete(scored: list[ScoredGroup]) -> list[ScoredGroup]:
    """With the reward of a greedy completion, rewards of steps, and of one function."""
    return [
        replace(
            s,
            rewards=tuple(replace(r, components={"right": r.value}) for r in s.rewards),
            greedy=Reward(0.25),
            steps=tuple(
                ((0, 0.5), (len(c.token_ids) - 1, float(r.value or 0.0)))
                for c, r in zip(s.group.completions, s.rewards, strict=True)
            ),
        )
        for s in scored
    ]


@pytest.fixture(scope="module")
def own_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture
def policy_of(parts):
    """A policy of the tiny model with an algorithm; the model is put back after each."""
    family, model, media, _ = parts
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = Config(
        model={"path": "m"},
        optimizer={"lr": 1e-3, "scheduler": {"type": "constant", "warmup_steps": 0}},
        trainer={"vision_token_cost": 1.0},
    )

    def build(algorithm: AlgorithmConfig) -> LocalPolicy:
        model.load_state_dict(before)
        packed = build_packed_model(config, model, ModelInputs(family, media))
        optimizer = Optimizer(model, config.optimizer, 4)
        return LocalPolicy(packed, build_algorithm(algorithm), optimizer, algorithm.ppo_epochs)

    yield build
    model.load_state_dict(before)


def experience_of(scored: list[ScoredGroup], config: AlgorithmConfig, policy) -> Experience:
    return build_experience(
        complete(scored),
        build_algorithm(config, 12, {"right": 1.0}),
        Models(
            policy,
            None if config.reference is None else Given(-6.0),
            None if config.critic is None else Given(0.25),
        ),
    )


@pytest.mark.parametrize(("advantage", "loss"), ALLOWED)
def test_each_pair_has_a_loss_whose_gradient_is_that_of_the_advantage(
    advantage, loss, parts, own_file
):
    """At ratio 1: where a better completion's token has a gradient, it is raised."""
    config = pair(advantage, loss, str(own_file))
    algorithm = build_algorithm(config)
    batch = experience_of(parts[3], config, Given(-6.5))
    logprobs = torch.full(batch.tokens.advantages.shape, -6.5, requires_grad=True)
    inputs = loss_inputs(batch, logprobs)
    total = (batch.tokens.loss_weights * algorithm.loss(inputs)).sum()
    (gradient,) = torch.autograd.grad(total, logprobs)
    assert torch.isfinite(gradient).all()
    assert not gradient[~batch.tokens.mask].any()
    metrics = algorithm.metrics(inputs)
    assert all(values.shape == logprobs.shape for values in metrics.values())
    learned = batch.tokens.mask & (batch.tokens.advantages != 0)
    if batch.tokens.chosen is not None:  # clip_cov leaves them out
        learned &= ~batch.tokens.chosen
    assert learned.any()
    if config.loss.per_completion:  # a token has the gradient of its completion
        wanted = batch.tokens.advantages.sum(1).sign()
        assert torch.equal(gradient.sum(1).sign(), -wanted)
    elif (advantage, config.loss.type) != ("process", "reinforce"):
        assert torch.equal(gradient[learned].sign(), -batch.tokens.advantages[learned].sign())


def loss_inputs(batch: Experience, logprobs: torch.Tensor) -> LossInputs:
    return LossInputs(
        logprobs,
        logprobs.detach(),
        batch.tokens.advantages,
        torch.zeros_like(logprobs),
        batch.tokens.mask,
        batch.tokens.ref_logprobs,
        batch.coefficients.kl,
        batch.coefficients.entropy,
        chosen=batch.tokens.chosen,
    )


COVERING = [
    *((a, "ppo") for a in ADVANTAGES),
    *(("grpo", b) for b in LOSSES if b != "ppo"),
    ("gae", "reinforce"),
    ("distillation", "gspo"),
    ("own", "own"),
]


@pytest.mark.parametrize(("advantage", "loss"), COVERING)
def test_an_update_of_a_model_with_it(advantage, loss, parts, policy_of, own_file):
    config = pair(advantage, loss, str(own_file))
    policy = policy_of(config)
    before = policy.logprobs([s.group for s in parts[3]])
    batch = experience_of(parts[3], config, policy)
    stats = policy.update(batch)
    assert stats["grad_norm"] > 0
    after = policy.logprobs([s.group for s in parts[3]])
    assert torch.isfinite(after).all()
    weighted = batch.tokens.advantages * batch.tokens.mask
    assert (weighted * (after - before)).sum() > 0  # what was better is likelier now


def test_the_state_of_both_is_kept(parts):
    """REINFORCE's baseline and Clip-Cov's draws, and the rewards so far."""
    keys = {"type": "reinforce", "normalize_rewards": True}
    config = AlgorithmConfig(advantage=keys, loss="clip_cov", ppo_epochs=2)
    algorithm = build_algorithm(config)
    build_experience(parts[3], algorithm, Models(Given(-6.5)))
    state = algorithm.state_dict()
    assert state["loss"] == {"mini_batches": 1.0}
    assert state["rewards"]["rewards/count"] == 12
    assert state["advantage"]["rewards"] == 12
    resumed = build_algorithm(config)
    resumed.load_state_dict(state)
    once, again = (
        build_experience(parts[3], each, Models(Given(-6.5))).tokens.advantages
        for each in (algorithm, resumed)
    )
    assert torch.equal(once, again)
    assert state["loss"] == {"mini_batches": 1.0}  # a copy


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("def advantage(): return {}", {}, "returned dict; it must return an .*Advantage"),
        ("def advantage(scale): ...", {}, "type=.*missing a required argument"),
        ("def advantage(): ...", {"scale": 1}, "unexpected keyword argument 'scale'"),
        ("def other(): ...", {}, "has no 'advantage'"),
    ],
)
def test_an_advantage_of_ones_own_that_is_wrong_is_named(source, options, said, tmp_path):
    (tmp_path / "a.py").write_text(source)
    use = f"{tmp_path}/a.py:advantage"
    config = AlgorithmConfig(advantage={"type": use, **options})
    with pytest.raises(ValueError, match=said):
        build_algorithm(config)


def test_a_critic_of_ones_own_needs_returns(own_file):
    own = {"type": f"{own_file}:advantage", "scale": 1, "critic": {}}
    with pytest.raises(ValueError, match="a critic learns the returns"):
        build_algorithm(AlgorithmConfig(advantage=own))


def test_a_type_error_within_ones_own_is_its_own(tmp_path):
    (tmp_path / "a.py").write_text("def loss(): return 1 + 'a'")
    config = AlgorithmConfig(loss=f"{tmp_path}/a.py:loss")
    with pytest.raises(TypeError, match="unsupported operand"):
        build_algorithm(config)


def test_a_loss_of_an_installed_package(tmp_path, monkeypatch):
    package = tmp_path / "other-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[mmr1.losses]\nother = other_loss:loss\n")
    (tmp_path / "other_loss.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"type": "other", "scale": 3.0}
    assert build_algorithm(AlgorithmConfig(loss=own)).needs_signal
    with pytest.raises(ValueError, match="othr"):
        build_algorithm(AlgorithmConfig(loss={**own, "type": "othr"}))


def inputs(rewards: list[list[float]]) -> AdvantageInputs:
    """Completions of two tokens, each token a step with the completion's reward."""
    outcome = torch.tensor(rewards)
    steps = outcome.flatten()[:, None].expand(-1, 2)
    ones = torch.ones(steps.shape, dtype=torch.bool)
    return AdvantageInputs(
        outcome,
        torch.ones_like(outcome, dtype=torch.bool),
        ones,
        torch.zeros(steps.shape),
        greedy=torch.full((len(rewards), 1), 0.5),
        greedy_valid=torch.ones((len(rewards), 1), dtype=torch.bool),
        step_rewards=steps,
        step_ends=ones,
        values=torch.zeros(steps.shape),
        components=outcome[None],
        weights=torch.ones(1),
    )


def built() -> Iterator[tuple[str, AlgorithmConfig]]:
    """Every advantage of the catalog."""
    for name in advantages.parts:
        yield name, pair(name, "ppo")


@pytest.mark.parametrize(("name", "config"), built(), ids=lambda x: x if isinstance(x, str) else "")
def test_an_advantage_that_compares_the_group_learns_nothing_from_a_group_of_one(name, config):
    of_tokens = build_algorithm(config).advantage.of_tokens
    alone = inputs([[1.0], [0.0]])
    if name == "gigpo":  # a turn each, and no two of them in one state
        ends = torch.ones_like(alone.mask).cumsum(-1) == alone.mask.sum(-1, keepdim=True)
        states = torch.arange(2)[:, None].expand(alone.mask.shape)
        alone = replace(alone, step_rewards=ends.float(), step_ends=ends, step_states=states)
    penalised = replace(alone, kl_penalty=torch.full(alone.mask.shape, 0.1))
    assert bool(of_tokens(penalised).any()) != config.advantage.compares_group


@pytest.mark.parametrize("name", PRESETS)
def test_what_the_loop_must_bring(name):
    config = config_of(name)
    advantage = build_algorithm(config).advantage
    assert advantage.greedy_baseline == (name == "remax")
    assert advantage.step_supervision == (name == "process_grpo")
    assert (advantage.returns is not None) == (config.critic is not None) == (name == "ppo")


BATCH = (11**0.5, -(11**-0.5))  # mean 1/12, population deviation sqrt(11) / 12
FIRST_ADVANTAGES = {
    # Of a completion with reward 1 and of one with reward 0 of the group 1, 0, 0, 0, worked by
    # hand; two more groups have rewards of 0 only.
    **dict.fromkeys(("grpo", "dapo", "gspo", "cispo", "sapo"), (1.5, -0.5)),
    **dict.fromkeys(("clip_cov", "kl_cov"), (1.5, -0.5)),
    "on_policy_distillation": (1.5, -0.5),  # where the teacher agrees with the student
    "dr_grpo": (0.75, -0.25),
    "rloo": (1, -1 / 3),
    "gpg": (3 * 0.75, 3 * -0.25),
    "reinforce": (11 / 12, -1 / 12),
    "remax": (0.5, -0.5),
    "reinforce_pp": BATCH,
    "ppo": BATCH,
    "reinforce_pp_baseline": (3, -1),
    "process_grpo": (2 * 0.75 / (1.5 / 7) ** 0.5, 2 * -0.25 / (1.5 / 7) ** 0.5),
}


@pytest.mark.parametrize("name", PRESETS)
def test_each_name_has_the_advantage_of_its_paper(name):
    of_tokens = build_algorithm(config_of(name)).advantage.of_tokens
    advantages = of_tokens(inputs([[1.0, 0.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4]))
    assert advantages[:2, 0].tolist() == pytest.approx(FIRST_ADVANTAGES[name], rel=1e-4)


def test_penalties_to_come_are_taken_off_after_the_group_mean():
    """As in OpenRLHF: group 1, 0 with penalties 0.1 and 0.2, and 0.3 and 0.4; by hand."""
    x = replace(inputs([[1.0, 0.0]]), kl_penalty=torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
    to_go = torch.tensor([[0.5 - 0.3, 0.5 - 0.2], [-0.5 - 0.7, -0.5 - 0.4]])
    before = torch.tensor([[0.7, 0.7], [-0.7, -0.7]])  # 1 - 0.3 and 0 - 0.7, less their mean
    for kl_to_go, expected in ((True, to_go), (False, before)):
        advantage = {"type": "reinforce_pp_baseline", "kl_to_go": kl_to_go}
        config = AlgorithmConfig(advantage=advantage, kl={"type": "reward", "coef": 0.1})
        found = build_algorithm(config).advantage.of_tokens(x)
        wanted = (expected - expected.mean()) / expected.std(correction=0)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_with_one_update_the_clipped_loss_has_the_policy_gradient_bit_for_bit():
    """The presets of plain policy gradients have PPO's loss: the ratio is then 1."""
    torch.manual_seed(0)
    logprobs, advantages = -torch.rand(4, 5) * 9, torch.randn(4, 5)
    weights, one = torch.rand(4, 5), torch.ones(4, 5, dtype=torch.bool)
    gradients = []
    for loss in ("ppo", "reinforce"):
        own = logprobs.clone().requires_grad_()
        x = LossInputs(own, own.detach(), advantages, torch.zeros(4, 5), one)
        algorithm = build_algorithm(AlgorithmConfig(loss=loss))
        (gradient,) = torch.autograd.grad((weights * algorithm.loss(x, 0.9)).sum(), own)
        gradients.append(gradient)
    assert torch.equal(*gradients)


class Uncertain(Given):
    """A policy with another log-prob and entropy at each token."""

    def logprobs(self, groups) -> torch.Tensor:
        same = super().logprobs(groups)
        return same + 4 * torch.arange(same.numel()).sin().reshape(same.shape)

    def scores(self, groups) -> TokenScores:
        logprobs = self.logprobs(groups)
        entropy = torch.arange(logprobs.numel()).reshape(logprobs.shape) / logprobs.numel()
        return TokenScores(logprobs, entropy)


def invalid_first(scored: ScoredGroup) -> list[ScoredGroup]:
    """The group with one completion of no valid reward, so that mini-batches have other counts."""
    rewards = (Reward(None, Status.ERROR), *scored.rewards[1:])
    return [replace(scored, rewards=rewards)]


def in_two_turns(scored: ScoredGroup) -> ScoredGroup:
    """The group with completions of a turn of one token and another of the rest."""
    completions = tuple(
        replace(c, spans=tuple(Span("assistant", n, "") for n in (1, len(c.token_ids) - 1) if n))
        for c in scored.group.completions
    )
    return replace(scored, group=replace(scored.group, completions=completions))


RUN_TIME = ("critic", "step_rewards", "teacher", "target")
"""Keys that name code or a model, or that act from one step to the next."""


def keys_of_types() -> list[Key]:
    """The keys of the advantages and losses, each within its type."""
    parts = ("algorithm.advantage", "algorithm.loss")
    keys = [key for key in every_key() if key.path.rpartition(".")[0] in parts]
    return [key for key in keys if key.name not in RUN_TIME]


def effect(key: Key, value: Any, parts, own: str) -> list[Any]:
    """The numbers of a step with the key at a value: the advantages, the loss and its gradient."""
    part = key.path.split(".")[1]
    kind = key.section.variant or key.section.model_fields["type"].default
    names = {"advantage": "grpo", "loss": "ppo"} | {part: kind}
    algorithm = pair(**names, own=own).changed({f"{part}.{key.name}": value})
    algorithm = algorithm.changed(ppo_mini_batch_size=1)
    if key.name == "kl_to_go":
        algorithm = algorithm.changed(kl={"type": "reward", "coef": 0.1})
    built = build_algorithm(algorithm, 12, {"right": 1.0})
    generator = torch.Generator().manual_seed(0)
    numbers: list[Any] = []
    for step in range(3):  # baselines and moments act from the second on
        scored = complete([*invalid_first(parts[3][0]), *parts[3][1:]][step:])
        experience = build_experience(
            [in_two_turns(s) for s in scored] if kind == "gigpo" else scored,
            built,
            Models(
                Uncertain(-6.5),
                None if algorithm.reference is None else Given(-6.0),
                None if algorithm.critic is None else Given(0.25),
            ),
        )
        noise = torch.randn(experience.tokens.advantages.shape, generator=generator)
        logprobs = (3 * noise - 6.5).requires_grad_()
        inputs = replace(
            loss_inputs(experience, logprobs), old_logprobs=torch.full(noise.shape, -6.5)
        )
        losses = built.loss(inputs)
        (gradient,) = torch.autograd.grad((experience.tokens.loss_weights * losses).sum(), logprobs)
        numbers += [experience.tokens.advantages, losses.detach(), gradient]
    return numbers


@pytest.mark.parametrize("key", keys_of_types(), ids=lambda key: ".".join(key.of_class))
def test_every_key_of_an_advantage_or_a_loss_changes_its_numbers(key, parts, own_file):
    default = key.field.get_default(call_default_factory=True)
    default = 0.5 if key.field.is_required() else default  # as in ``pair``
    other = yaml.safe_load(key.other.partition("=")[2])
    before, after = (effect(key, value, parts, str(own_file)) for value in (default, other))
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
