"""``mmr1 iterative-grpo``: iterative GRPO with a reward model that learns too (arXiv 2402.03300).

Algorithm 1 of the paper: a round trains the policy, and its reference is the policy at the start of
the round. Then the reward model learns from rankings of the round's completions and, in a small
part, from earlier data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmr1.config import Config
from mmr1.rewards.builtin.elsewhere import RewardModelConfig
from mmr1.trainer.runs.existing import check_output_dir
from mmr1.trainer.runs.output import finished
from mmr1.trainer.train import run_training
from mmr1.trainer.validation.evaluate import accuracy_function
from mmr1_contrib.offline.rankings import copy_rankings, rank_rollouts
from mmr1_contrib.offline.reward_model import run_reward_model
from mmr1_contrib.offline.sections import IterativeGrpoConfig

REPLAY_FRACTION = 0.1
"""Share of earlier data in the training of the reward model (arXiv 2402.03300)."""


def run_iterative_grpo(config: Config, *, resume: bool = False) -> Path:
    """Run ``iterative_grpo.rounds`` rounds of ``trainer.max_steps`` steps of the policy each.

    ``round_1/policy``, ``round_1/reward_model``, ... in ``trainer.output_dir`` are runs of their
    own, with their reports. With ``resume`` what is done is not done again. The last checkpoint of
    the policy is returned.

    Raises:
        ValueError: The configuration or the data cannot be used, or a round gave no ranking.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    root, settings = Path(config.trainer.output_dir), config.section(IterativeGrpoConfig)
    if not resume and (root / "round_1").exists():
        raise ValueError(
            f"trainer.output_dir '{root}' already holds rounds; continue them with --resume, or "
            "name another trainer.output_dir"
        )
    name = reward_model_name(config)
    ranked_by = settings.ranked_by or accuracy_function(
        config.rewards, config.eval.accuracy_function
    )
    policy, reward_model = config.model.path, _reward_model(config, name).path
    history = [] if settings.history is None else [_history(config, root)]
    for number in range(1, settings.rounds + 1):
        folder = root / f"round_{number}"
        print(f"round {number} of {settings.rounds}: policy")
        of_policy = policy_config(config, number, policy, name, reward_model, folder / "policy")
        policy = str(run_training(of_policy, resume=True))
        if number == settings.rounds:
            break
        print(f"round {number} of {settings.rounds}: reward model")
        rankings = folder / "rankings.jsonl"
        if not rankings.exists():
            count = rank_rollouts(folder / "policy", rankings, config.data, ranked_by)
            print(f"{rankings}: {count} rankings")
        of_model = reward_model_config(
            config, number, reward_model, str(rankings), history, folder / "reward_model"
        )
        check_output_dir(of_model, resume=True)
        done = finished(of_model)
        reward_model = str(done or run_reward_model(of_model, resume=True))
        history.append(str(rankings))
    return Path(policy)


def _history(config: Config, root: Path) -> str:
    """The earlier data as records whose media lie beside them, like those of the rankings."""
    settings = config.section(IterativeGrpoConfig)
    assert settings.history is not None
    own = root / "history.jsonl"
    if not own.exists():
        copy_rankings(settings.history, own, config.data)
    return str(own)


def reward_model_name(config: Config) -> str:
    """The name of the one reward model among the rewards. Raises ValueError if there are others."""
    names = [n for n, reward in config.rewards.items() if isinstance(reward, RewardModelConfig)]
    if len(names) != 1:
        raise ValueError(
            "mmr1 iterative-grpo trains the one reward model among rewards, and there are "
            f"{len(names)}; add one, as in liked: {{type: reward_model, path: ...}}"
        )
    return names[0]


def _reward_model(config: Config, name: str) -> RewardModelConfig:
    section = config.rewards[name]
    assert isinstance(section, RewardModelConfig), "reward_model_name returned its name"
    return section


def policy_config(
    config: Config, number: int, policy: str, name: str, reward_model: str, output: Path
) -> Config:
    """The run of a round's policy: from the last one, judged by the last reward model.

    Every completion is logged, because the rankings are made of them. Each round has prompts in an
    order of its own. A checkpoint has its adapters merged, so only the first round starts from
    stored ones.
    """
    judge = _reward_model(config, name).changed(path=reward_model)
    return config.for_command("train").changed(
        {
            "seed": config.seed + number - 1,
            **({"model.path": policy} if number == 1 else _merged(config, policy)),
            "rewards": {**config.rewards, name: judge},
            "trainer.output_dir": str(output),
            "trainer.log_completions_steps": 1,
        }
    )


def reward_model_config(
    config: Config,
    number: int,
    reward_model: str,
    rankings: str,
    history: list[str],
    output: Path,
) -> Config:
    """The run of a round's reward model: from the last one, on new rankings and some old ones."""
    settings = config.section(IterativeGrpoConfig)
    replay = REPLAY_FRACTION if history else 0.0
    train = {rankings: 1 - replay} | {old: replay / len(history) for old in history if replay}
    return config.for_command("rm").changed(
        {
            "seed": config.seed + number - 1,
            **_merged(config, reward_model),
            "data.train": train,
            "data.media_root": None,
            "data.format": None,
            "optimizer.lr": settings.rm_lr,
            "trainer.output_dir": str(output),
            "trainer.max_steps": settings.rm_steps,
            "trainer.validation": None,
        }
    )


def _merged(config: Config, path: str) -> dict[str, Any]:
    """Keys of ``model`` for a checkpoint of ``path``: with LoRA its adapters are new."""
    lora = config.model.lora
    return {"model.path": path, "model.lora": lora and lora.as_new()}
