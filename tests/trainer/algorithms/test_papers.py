"""The values of each algorithm's paper, written down here a second time, with where they stand.

A change of a default anywhere must also be made here, against the paper.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from mmr1.config import AlgorithmConfig
from mmr1.config.algorithm_spec import algorithm_specs
from tests.trainer.algorithms.required import config_of

PPO_CLIP = (0.2, "1707.06347 section 6.1, table 1: the best value; this paper gives none")
OURS = "not in the paper; this project's choice"
GROUP_AND_CLIP = {
    "clip_ratio_low": PPO_CLIP,
    "clip_ratio_high": PPO_CLIP,
    "importance_sampling_level": ("token", "2402.03300 equation 3"),
    "loss_agg_mode": ("seq-mean-token-mean", "2402.03300 equation 3: 1/G sum of 1/|o_i| sum"),
    "kl_estimator": ("k3", "2402.03300 equation 4"),
    "use_kl_loss": (True, "2402.03300 section 4.1.1: the KL is in the loss, not in the reward"),
    "ppo_epochs": (1, "2402.03300 section 4.2: one update per exploration stage"),
    "dynamic_sampling": (False, "2402.03300: every group is kept"),
}
POLICY_GRADIENT = {
    "loss_agg_mode": ("token-mean", OURS),
    "ppo_epochs": (1, "the gradient is of the policy that sampled"),
    "importance_sampling": ("clip", OURS),
    "clip_ratio_low": (0.2, OURS),
    "clip_ratio_high": (0.2, OURS),
}

PAPERS: dict[str, dict[str, tuple[Any, str]]] = {
    "grpo": GROUP_AND_CLIP,
    "process_grpo": GROUP_AND_CLIP,
    "t_grpo": GROUP_AND_CLIP,  # 2503.21776 section 3.1 changes the reward alone
    "dr_grpo": {
        **GROUP_AND_CLIP,
        "loss_agg_mode": ("seq-mean-token-sum-norm", "2503.20783 section 3.2"),
        "kl_coef": (0.0, "2503.20783 section 3: beta = 0"),
    },
    "dapo": {
        **GROUP_AND_CLIP,
        "clip_ratio_low": (0.2, "2503.14476 section 4.1"),
        "clip_ratio_high": (0.28, "2503.14476 section 4.1; clip-higher is section 3.1"),
        "dynamic_sampling": (True, "2503.14476 section 3.2"),
        "loss_agg_mode": ("token-mean", "2503.14476 section 3.3"),
        "kl_coef": (0.0, "2503.14476 section 2.3"),
    },
    "gspo": {
        **GROUP_AND_CLIP,
        "importance_sampling_level": ("sequence", "2507.18071 section 4.1"),
        "clip_ratio_low": (3e-4, "2507.18071 section 5.1"),
        "clip_ratio_high": (4e-4, "2507.18071 section 5.1"),
    },
    "cispo": {
        "clip_ratio_low": (1.0, "2506.13585 section 3.1: no lower bound, so 1 - low is 0"),
        "clip_ratio_high": (4.0, OURS + ": the paper tunes the upper bound and gives no number"),
        "loss_agg_mode": ("token-mean", "2506.13585 equation 4: 1 / sum of |o_i|"),
        "kl_coef": (0.0, "2506.13585 section 3.1: no KL penalty"),
    },
    "clip_cov": {
        "loss_agg_mode": ("token-mean", "the authors' scripts"),
        "clip_ratio_low": (1.0, "the authors' scripts; no clip in the paper's equation"),
        "clip_ratio_high": (1.0, "the same"),
        "clip_cov_ratio": (2e-4, "2505.22617, the experiments: r"),
        "clip_cov_lb": (1.0, "2505.22617, the experiments: omega_low; the authors' scripts"),
        "clip_cov_ub": (5.0, "2505.22617, the experiments: omega_high; the authors' scripts"),
    },
    "kl_cov": {
        "loss_agg_mode": ("token-mean", "the authors' scripts"),
        "kl_cov_ratio": (2e-3, "2505.22617, the experiments: k, of 7B; the authors' code"),
        "kl_cov_coef": (1.0, "2505.22617, the experiments: beta; the authors' code"),
    },
    "sapo": {
        "sapo_tau": ((1.0, 1.05), "2511.20347, the experiments: tau_pos = 1.0, tau_neg = 1.05"),
        "loss_agg_mode": ("seq-mean-token-mean", "2511.20347, the objective: 1/|o_i| sum"),
    },
    "rloo": POLICY_GRADIENT,
    "remax": POLICY_GRADIENT,
    "reinforce": {
        **POLICY_GRADIENT,
        "gamma": (1.0, "Williams 1992: no discount"),
        "baseline": ("moving_average", OURS),
        "baseline_momentum": (0.9, OURS),
    },
    "gpg": {
        **POLICY_GRADIENT,
        "loss_agg_mode": ("token-mean", "2504.02546 equation 5: 1 / sum of |o_i|"),
        "kl_coef": (0.0, "2504.02546: no reference model"),
    },
    "reinforce_pp": {
        "gamma": (1.0, "OpenRLHF, the authors' code: gamma"),
        "use_kl_loss": (False, "2501.03262: the KL is a penalty per token in the reward"),
        "kl_estimator": ("k1", "2501.03262: log pi / pi_SFT"),
        "loss_agg_mode": ("token-mean", "OpenRLHF, the authors' code"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
    },
    "reinforce_pp_baseline": {
        "use_kl_loss": (True, "2501.03262, w/ baseline: the KL is in the loss"),
        "kl_estimator": ("k2", "2501.03262, w/ baseline"),
        "loss_agg_mode": ("token-mean", "OpenRLHF, the authors' code"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
    },
    "on_policy_distillation": {
        "kl_coef": (1.0, "2306.08543 equation 1: the reverse KL alone"),
        "use_kl_loss": (False, OURS + ": the KL is each token's advantage"),
        "kl_estimator": ("k1", "2306.08543 equation 2: log p / q of the sampled token"),
        "loss_agg_mode": ("token-mean", OURS),
    },
    "ppo": {
        "clip_ratio_low": (0.2, "1707.06347 section 6.1, table 1; 2203.02155 appendix C"),
        "clip_ratio_high": (0.2, "1707.06347 section 6.1, table 1; 2203.02155 appendix C"),
        "use_kl_loss": (False, "2203.02155 equation 2: the KL is in the reward"),
        "kl_estimator": ("k1", "2203.02155 equation 2: log pi / pi_SFT"),
        "loss_agg_mode": ("token-mean", OURS),
        "critic.gamma": (1.0, "2203.02155 appendix C: no discount"),
        "critic.lam": (1.0, OURS),
        "critic.cliprange_value": (0.2, OURS + ": the ratio's clip, as in OpenAI's code"),
    },
}


def test_every_algorithm_is_in_the_table():
    assert set(PAPERS) == set(algorithm_specs())


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, values in PAPERS.items() for key in values]
)
def test_the_default_is_the_papers(name, key):
    value, where = PAPERS[name][key]
    assert reduce(getattr, key.split("."), config_of(name)) == value, where


@pytest.mark.parametrize("name", PAPERS)
def test_no_default_of_an_algorithm_is_left_out_of_the_table(name):
    keys = {key.partition(".")[0] for key in PAPERS[name]}
    assert set(algorithm_specs()[name].defaults) <= keys


@pytest.mark.parametrize("name", PAPERS)
def test_what_the_user_sets_comes_before_the_papers_values(name):
    own = {"loss_agg_mode": "token-mean", "kl_estimator": "k2", "kl_coef": 0.5}
    if name in ("dapo", "gspo"):
        own |= {"clip_ratio_high": 0.7}
    if name == "on_policy_distillation":  # has one estimator
        del own["kl_estimator"]
    config = config_of(name, **own)
    assert {key: getattr(config, key) for key in own} == own
    assert AlgorithmConfig(**config.model_dump()) == config
