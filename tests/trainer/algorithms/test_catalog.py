"""The algorithms' own files: how they are found, and that what they say of themselves is true."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmr1.config import AlgorithmConfig
from mmr1.config.algorithm_spec import algorithm_names, algorithm_readers, algorithm_specs
from mmr1.trainer.algorithms import build_algorithm
from mmr1.trainer.algorithms.algorithm import AdvantageInputs, LossInputs, UpdateTokens
from tests.paths import REPOSITORY
from tests.trainer.algorithms.required import config_of

SPECS = algorithm_specs()
CATALOG = REPOSITORY / "mmr1/trainer/algorithms/catalog"


def run_python(code: str, *arguments: Path) -> str:
    """What a fresh process prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout


def test_reading_a_configuration_loads_no_torch():
    code = """
import sys
from pathlib import Path
from mmr1.config.algorithm_spec import algorithm_specs
from mmr1.config.file import load_config
overrides = {
    "process_grpo": ["algorithm.step_rewards=x.py:f"],
    "on_policy_distillation": ["algorithm.ref_model_path=teacher"],
    "kl_cov": ["algorithm.ppo_epochs=2"],
    "t_grpo": ["rewards.functions={temporal_contrast: {}}"],
}
for name in algorithm_specs():
    load_config(None, ["model.path=a", f"algorithm.name={name}", *overrides.get(name, [])])
    heavy = {"torch", "transformers", "ray", "vllm"} & set(sys.modules)
    assert not heavy, f"{name} loads {heavy}"
print(len(algorithm_specs()))
"""
    assert int(run_python(code)) == len(SPECS)


@pytest.mark.parametrize("path", sorted(CATALOG.glob("*.py")), ids=lambda path: path.stem)
def test_a_file_of_the_catalog_can_be_imported_first(path):
    """The configuration imports these files and they import the configuration."""
    module = f"mmr1.trainer.algorithms.catalog.{path.stem}".removesuffix(".__init__")
    run_python(f"import sys, {module}; assert 'torch' not in sys.modules")


def test_a_new_file_is_a_new_algorithm(tmp_path):
    text = (CATALOG / "sapo.py").read_text().replace('name="sapo"', 'name="my_sapo"')
    (tmp_path / "my_sapo.py").write_text(
        text.replace("reads=", 'defaults={"kl_coef": 0.5}, reads=')
    )
    code = """
import sys
import mmr1.trainer.algorithms.catalog as catalog
catalog.__path__.append(sys.argv[1])
import torch
from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import build_algorithm
from mmr1.trainer.algorithms.algorithm import LossInputs
config = AlgorithmConfig(name="my_sapo", sapo_tau=(2, 2), kl_coef=0)
one = torch.ones(1, 1)
inputs = LossInputs(one, one, one, one, one.bool())
# At ratio 1 the gate's sigmoid is a half.
print(AlgorithmConfig(name="my_sapo").kl_coef, build_algorithm(config).token_loss(inputs).item())
try:
    AlgorithmConfig(sapo_tau=(2, 2))
except ValueError as error:
    print("one of my_sapo, sapo" in str(error))
"""
    assert run_python(code, tmp_path).split() == ["0.5", "-1.0", "True"]


def test_an_installed_package_can_add_an_algorithm(tmp_path, monkeypatch):
    package = tmp_path / "other-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[mmr1.algorithms]\nother = other_algorithm:build\n")
    (tmp_path / "other_algorithm.py").write_text(
        "from mmr1.trainer.algorithms.terms import clipped_algorithm\n"
        "def build(config):\n"
        "    return clipped_algorithm(lambda x: x.mask * 1.0, config)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = AlgorithmConfig(
        name="other", loss={"tau_pos": 2, "tau_neg": 2}
    )  # what it reads is not known
    assert config.spec is None
    assert build_algorithm(config).loss_agg_mode == config.loss_agg_mode
    with pytest.raises(ValueError, match="did you mean 'other'"):
        AlgorithmConfig(name="othr")


@pytest.mark.parametrize("name", SPECS)
def test_a_name_stands_for_the_file_that_defines_it(name):
    module, _, attribute = algorithm_names().builtin[name].partition(":")
    assert SPECS[name] in getattr(sys.modules[module], attribute)


class ReadKeys:
    """A configuration that notes which of its keys are read."""

    def __init__(self, config: AlgorithmConfig) -> None:
        self._config = config
        self.read: set[str] = set()

    def __getattr__(self, key: str):
        self.read.add(key)
        return getattr(self._config, key)


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
    )


@pytest.mark.parametrize("name", SPECS)
def test_the_keys_it_says_it_reads_are_read(name):
    """``step_rewards`` is the loop's to read; what several updates need is read with several."""
    config = ReadKeys(config_of(name, ppo_epochs=2))
    algorithm = SPECS[name].build(config)
    x = inputs([[1.0, 0.0]])
    logprobs = torch.full((2, 2), -1.0)
    tokens = UpdateTokens(logprobs, algorithm.advantages(x), x.mask)
    chosen = None if algorithm.choose is None else algorithm.choose(tokens)
    loss = LossInputs(
        logprobs, logprobs - 0.1, tokens.advantages, logprobs * 0, x.mask, chosen=chosen
    )
    algorithm.loss(loss)
    assert set(SPECS[name].reads) - {"step_rewards"} <= config.read
    if "importance_sampling" not in SPECS[name].reads:  # whose clipped form shares its code
        others = set(algorithm_readers()) - set(SPECS[name].reads)
        assert others & config.read <= {"importance_sampling_level"}


@pytest.mark.parametrize("name", SPECS)
def test_the_keys_that_only_others_read_are_refused(name):
    other_values = {
        "adv_estimator": "rloo",
        "clip_ratio_low": 0.11,
        "clip_ratio_high": 0.12,
        "clip_ratio_dual": 7.0,
        "importance_sampling_level": "sequence_product",
        "importance_sampling": "per_decision",
        "gamma": 0.5,
        "clip_cov_ratio": 0.1,
        "clip_cov_lb": 0.5,
        "clip_cov_ub": 4.0,
        "kl_cov_ratio": 0.1,
        "kl_cov_coef": 0.5,
        "baseline": "mean",
        "baseline_momentum": 0.5,
        "sapo_tau": (2.0, 3.0),
        "step_rewards": "y.py:g",
        "critic": {"lr": 1e-3},
    }
    assert set(other_values) == set(algorithm_readers())
    for key, value in other_values.items():
        if key in SPECS[name].reads:
            config_of(name, **{key: value})
        else:
            with pytest.raises(ValueError, match=f"{name} does not read {key}"):
                config_of(name, **{key: value})


@pytest.mark.parametrize("name", SPECS)
def test_an_algorithm_that_compares_the_group_learns_nothing_from_a_group_of_one(name):
    algorithm = build_algorithm(config_of(name))
    alone = inputs([[1.0], [0.0]])
    penalised = replace(alone, kl_penalty=torch.full(alone.mask.shape, 0.1))
    learns_from_one = bool(algorithm.advantages(penalised).any())
    assert learns_from_one != SPECS[name].compares_group


@pytest.mark.parametrize("name", SPECS)
def test_shuffled_frames_and_their_reward_function_go_together(name):
    algorithm = build_algorithm(config_of(name))
    assert algorithm.shuffled_frames == (SPECS[name].reward_function == "temporal_contrast")
    assert algorithm.greedy_baseline == (name == "remax")
    assert (algorithm.returns is not None) == ("critic" in SPECS[name].reads)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "kl_cov"}, "set ppo_mini_batch_size, or ppo_epochs above 1"),
        ({"name": "clip_cov", "clip_cov_lb": 5.0}, "no token lies between them"),
        ({"name": "ppo", "critic": None}, "leave algorithm.critic out"),
        ({"name": "process_grpo"}, "name a file.py:function in algorithm.step_rewards"),
        (
            {"name": "process_grpo", "step_rewards": "x.py:f", "use_kl_loss": False},
            "set use_kl_loss=true",
        ),
    ],
)
def test_what_an_algorithm_requires_is_said(keys, said):
    with pytest.raises(ValueError, match=said):
        AlgorithmConfig(**keys)


BATCH = (11**0.5, -(11**-0.5))  # mean 1/12, population deviation sqrt(11) / 12
FIRST_ADVANTAGES = {
    # Of a completion with reward 1 and of one with reward 0 of the group 1, 0, 0, 0, worked by
    # hand; two more groups have rewards of 0 only.
    **dict.fromkeys(("grpo", "dapo", "gspo", "t_grpo", "cispo", "sapo"), (1.5, -0.5)),
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


@pytest.mark.parametrize("name", SPECS)
def test_each_name_has_the_advantage_of_its_paper(name):
    algorithm = build_algorithm(config_of(name))
    advantages = algorithm.advantages(inputs([[1.0, 0.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4]))
    assert advantages[:2, 0].tolist() == pytest.approx(FIRST_ADVANTAGES[name], rel=1e-4)
