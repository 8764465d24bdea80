"""The values of each algorithm's paper, written down here a second time, with where they stand.

A change of a default anywhere must also be made here, against the paper.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from mmr1.algorithms.advantages import reinforce
from mmr1.algorithms.losses import clip_cov
from mmr1.config import AlgorithmConfig
from mmr1.config.presets import PRESETS
from tests.algorithms.required import config_of

PPO_CLIP = (0.2, "1707.06347 section 6.1, table 1: the best value; this paper gives none")
OURS = "not in the paper; this project's choice"
CLIP = {"loss.clip_ratio_low": PPO_CLIP, "loss.clip_ratio_high": PPO_CLIP}
NO_KL = (None, "no KL penalty")
EVERY_GROUP = {
    "ppo_epochs": (1, "2402.03300 section 4.2: one update per exploration stage"),
    "filter_groups": (None, "2402.03300: every group is kept"),
}
GROUP = {
    "advantage.type": ("grpo", "2402.03300 section 4.1.2"),
    "advantage.scale_rewards": ("group", "2402.03300 section 4.1.2: std(r)"),
}
GROUP_AND_CLIP = {
    **GROUP,
    **CLIP,
    **EVERY_GROUP,
    "loss.type": ("ppo", "2402.03300 equation 3: the ratio of a token"),
    "loss.agg_mode": (
        "token-mean",
        "TRL, verl, EasyR1; 2402.03300: per completion",
    ),
    "kl.estimator": ("k3", "2402.03300 equation 4"),
    "kl.type": ("loss", "2402.03300 section 4.1.1: the KL is in the loss, not in the reward"),
}
POLICY_GRADIENT = {
    "ppo_epochs": (1, "the gradient is of the policy that sampled"),
    "loss.type": ("ppo", OURS + ": with one update per rollout the policy gradient"),
    "loss.agg_mode": ("token-mean", OURS),
    "loss.clip_ratio_low": (0.2, OURS),
    "loss.clip_ratio_high": (0.2, OURS),
}

PAPERS: dict[str, dict[str, tuple[Any, str]]] = {
    "grpo": GROUP_AND_CLIP,
    "process_grpo": {
        **{key: value for key, value in GROUP_AND_CLIP.items() if not key.startswith("advantage")},
        "advantage.type": ("process", "2402.03300 section 4.1.3"),
    },
    "dr_grpo": {
        **GROUP_AND_CLIP,
        "advantage.scale_rewards": ("none", "2503.20783 section 3.2: no division by std"),
        "loss.agg_mode": ("seq-mean-token-sum-norm", "2503.20783 section 3.2"),
    },
    "dapo": {
        **GROUP_AND_CLIP,
        "loss.clip_ratio_low": (0.2, "2503.14476 section 4.1"),
        "loss.clip_ratio_high": (0.28, "2503.14476 section 4.1; clip-higher is section 3.1"),
        "filter_groups": ("resample", "2503.14476 section 3.2"),
        "loss.agg_mode": ("token-mean", "2503.14476 section 3.3"),
    },
    "gspo": {
        **GROUP,
        **EVERY_GROUP,
        "loss.type": ("gspo", "2507.18071 section 4.1: the mean ratio of the sequence"),
        "loss.clip_ratio_low": (3e-4, "2507.18071 section 5.1"),
        "loss.clip_ratio_high": (4e-4, "2507.18071 section 5.1"),
    },
    "cispo": {
        **GROUP,
        "loss.type": ("cispo", "2506.13585 equation 4"),
        "loss.clip_ratio_low": (1.0, "2506.13585 section 3.1: no lower bound, so 1 - low is 0"),
        "loss.clip_ratio_high": (4.0, OURS + ": the paper tunes the upper bound, and gives none"),
        "loss.agg_mode": ("token-mean", "2506.13585 equation 4: 1 / sum of |o_i|"),
    },
    "clip_cov": {
        **GROUP,
        "loss.type": ("clip_cov", "2505.22617"),
        "loss.agg_mode": ("token-mean", "the authors' scripts"),
        "loss.clip_ratio_low": (1.0, "the authors' scripts; no clip in the paper's equation"),
        "loss.clip_ratio_high": (1.0, "the same"),
        "loss.ratio": (2e-4, "2505.22617, the experiments: r"),
    },
    "kl_cov": {
        **GROUP,
        "loss.type": ("kl_cov", "2505.22617"),
        "loss.agg_mode": ("token-mean", "the authors' scripts"),
        "loss.ratio": (2e-3, "2505.22617, the experiments: k, of 7B; the authors' code"),
        "loss.coef": (1.0, "2505.22617, the experiments: beta; the authors' code"),
    },
    "sapo": {
        **GROUP,
        "loss.type": ("sapo", "2511.20347"),
        "loss.tau_pos": (1.0, "2511.20347, the experiments: tau_pos = 1.0"),
        "loss.tau_neg": (1.05, "2511.20347, the experiments: tau_neg = 1.05"),
        "loss.agg_mode": ("seq-mean-token-mean", "2511.20347, the objective: 1/|o_i| sum"),
    },
    "rloo": {**POLICY_GRADIENT, "advantage.type": ("rloo", "2402.14740 equation 8")},
    "remax": {**POLICY_GRADIENT, "advantage.type": ("remax", "2310.10505")},
    "reinforce": {
        **POLICY_GRADIENT,
        "advantage.type": ("reinforce", "Williams 1992"),
        "advantage.gamma": (1.0, "Williams 1992: no discount"),
        "advantage.baseline": ("moving_average", OURS),
    },
    "gpg": {
        **POLICY_GRADIENT,
        "advantage.type": ("gpg", "2504.02546"),
        "loss.agg_mode": ("token-mean", "2504.02546 equation 5: 1 / sum of |o_i|"),
    },
    "reinforce_pp": {
        **CLIP,
        "advantage.type": ("reinforce_pp", "2501.03262"),
        "advantage.gamma": (1.0, "OpenRLHF, the authors' code: gamma"),
        "kl.type": ("reward", "2501.03262: the KL is a penalty per token in the reward"),
        "kl.estimator": ("k1", "2501.03262: log pi / pi_SFT"),
        "loss.type": ("ppo", "2501.03262"),
        "loss.agg_mode": ("token-mean", "OpenRLHF, the authors' code"),
    },
    "reinforce_pp_baseline": {
        **CLIP,
        "advantage.type": ("reinforce_pp_baseline", "2501.03262, w/ baseline"),
        "kl.type": ("loss", "2501.03262, w/ baseline: the KL is in the loss"),
        "kl.estimator": ("k2", "2501.03262, w/ baseline"),
        "loss.type": ("ppo", "2501.03262"),
        "loss.agg_mode": ("token-mean", "OpenRLHF, the authors' code"),
    },
    "on_policy_distillation": {
        "advantage.type": ("distillation", "2306.08543 equation 2: log p / q of the token"),
        "advantage.coef": (1.0, "2306.08543 equation 1: the reverse KL alone"),
        "loss.type": ("ppo", OURS),
        "loss.agg_mode": ("token-mean", OURS),
    },
    "ppo": {
        "loss.clip_ratio_low": (0.2, "1707.06347 section 6.1, table 1; 2203.02155 appendix C"),
        "loss.clip_ratio_high": (0.2, "1707.06347 section 6.1, table 1; 2203.02155 appendix C"),
        "kl.type": ("reward", "2203.02155 equation 2: the KL is in the reward"),
        "kl.estimator": ("k1", "2203.02155 equation 2: log pi / pi_SFT"),
        "loss.type": ("ppo", "1707.06347 equation 7"),
        "loss.agg_mode": ("token-mean", OURS),
        "advantage.type": ("gae", "1506.02438"),
        "advantage.gamma": (1.0, "2203.02155 appendix C: no discount"),
        "advantage.lam": (1.0, OURS),
        "advantage.critic.cliprange_value": (0.2, OURS + ": the ratio's, as in OpenAI's code"),
    },
}


def opened(name: str) -> AlgorithmConfig:
    """The preset with a KL, which teachers have not beside them."""
    return config_of(name, **({} if name == "on_policy_distillation" else {"kl": {"coef": 0.1}}))


def test_every_algorithm_is_in_the_table():
    assert set(PAPERS) == set(PRESETS)


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, values in PAPERS.items() for key in values]
)
def test_the_default_is_the_papers(name, key):
    value, where = PAPERS[name][key]
    found: Any = reduce(getattr, key.split("."), opened(name))
    assert getattr(found, "type", found) == value, where


@pytest.mark.parametrize("name", PAPERS)
def test_no_value_of_a_preset_is_left_out_of_the_table(name):
    preset = PRESETS[name]
    keys = {f"{part}.{key}" for part in ("advantage", "loss") for key in preset[part]}
    assert keys <= set(PAPERS[name])
    assert preset["filter_groups"] is None or "filter_groups" in PAPERS[name]
    assert config_of(name).kl is None  # a KL is never on by itself


def test_constants_of_the_papers():
    assert clip_cov.CLIP_COV_BOUNDS == (1.0, 5.0)  # 2505.22617: omega_low and omega_high
    assert reinforce.MOMENTUM == 0.9  # ours


@pytest.mark.parametrize("name", PAPERS)
def test_what_the_user_sets_comes_before_the_papers_values(name):
    own: dict[str, Any] = {"loss": {"agg_scope": "rollout"}}
    if name not in ("gspo",):
        own["loss"]["agg_mode"] = "token-mean"
    if name in ("dapo", "gspo"):
        own["loss"]["clip_ratio_high"] = 0.7
    if name != "on_policy_distillation":
        own["kl"] = {"coef": 0.5, "estimator": "k2"}
    config = config_of(name, **own)
    for part, keys in own.items():
        section = getattr(config, part)
        assert {key: getattr(section, key) for key in keys} == keys
    assert AlgorithmConfig(**config.model_dump()) == config
