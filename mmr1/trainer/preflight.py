"""Checks of the configuration and the file system, before torch is imported.

A wrong path or name is told within a second or two, and not after a minute of imports and loading.
What the records and the model hold is checked later, by ``inputs.py``.
"""

from __future__ import annotations

from pathlib import Path

from mmr1.algorithms.advantages.distillation import TeacherModel
from mmr1.config import (
    Config,
    EnvironmentConfig,
    ToolsConfig,
)
from mmr1.data.forms import check_form
from mmr1.data.readers import check_dataset
from mmr1.data.templates import load_template
from mmr1.environments.mcp_servers import is_server_list
from mmr1.environments.styles import is_tool_file
from mmr1.environments.toolbox import TOOLS
from mmr1.extras import needs_extra
from mmr1.registry import check_file, check_is_file
from mmr1.rewards.builtin.elsewhere import RewardModelConfig
from mmr1.rewards.builtin.judge import JudgeConfig
from mmr1.rewards.judges.conversation import load_judge_template
from mmr1.rewards.kind import OwnReward, reward
from mmr1.rollout.engines import check_engine
from mmr1.trainer.runs.existing import check_output_dir
from mmr1.trainer.runs.tracking import check_trackers
from mmr1.vision.families.chat import read_template
from mmr1.vision.families.model_path import check_directory_of_model, check_model_path


def check_training(config: Config, *, resume: bool, samples: bool) -> None:
    """Check the configuration of a training run.

    Args:
        resume: Continue the run in ``trainer.output_dir``.
        samples: True if the run samples completions and scores them.

    Raises:
        ValueError: A path or a name is wrong. Nothing has been written, and torch not imported.
    """
    check_output_dir(config, resume=resume)
    check_trackers(config.trainer.trackers)
    check_model_path(config.model.path)
    critic = config.algorithm.critic
    if samples and critic is not None and critic.path is not None:
        check_directory_of_model(critic.path, "algorithm.advantage.critic.path")
    reference = config.algorithm.reference
    if samples and isinstance(reference, TeacherModel):
        check_model_path(reference.path, f"{config.algorithm.reference_key}.path")
    train = config.data.train or {}
    for spec in [train] if isinstance(train, str) else train:
        check_dataset(spec, "data.train")
    if samples:
        _check_dataset_if_set(config.eval_records, "trainer.validation.data")
        if config.eval_records is not None:
            _check_intervals("trainer.validation")
        if config.algorithm.ptx is not None:
            check_dataset(config.algorithm.ptx.data, "algorithm.ptx.data")
        _check_rewards(config)
        check_engine(config)
    _check_environment(config)
    _check_data_keys(config)


def check_evaluation(config: Config) -> None:
    """Check the configuration of an evaluation.

    Raises:
        ValueError: A path or a name is wrong. Nothing has been written, and torch not imported.
    """
    models = {f"eval.models.{name}": path for name, path in config.eval.models.items()}
    for key, path in (models or {"model.path": config.model.path}).items():
        check_model_path(path, key)
    if isinstance(config.eval.data, dict):
        for name, spec in config.eval.data.items():
            check_dataset(spec, f"eval.data.{name}")
    else:
        key = "trainer.validation.data" if config.eval.data is None else "eval.data"
        _check_dataset_if_set(config.eval_records, key)
    _check_intervals("mmr1 eval")
    _check_rewards(config)
    check_engine(config)
    _check_environment(config)
    _check_data_keys(config)


def _check_intervals(user: str) -> None:
    with needs_extra("report", user):
        import scipy  # noqa: F401  confidence intervals


def _check_dataset_if_set(spec: str | None, key: str) -> None:
    if spec is not None:
        check_dataset(spec, key)


def _check_data_keys(config: Config) -> None:
    data = config.data
    if data.format_name is not None:
        check_form(data.format_name)
    if data.prompt_template:
        load_template(data.prompt_template)
    read_template(data.chat_template)
    if data.media_root is not None and not Path(data.media_root).is_dir():
        raise ValueError(f"data.media_root '{data.media_root}': no such folder")


def check_reward_names(config: Config) -> None:
    """Raises ValueError for a reward that has neither a known name nor a file."""
    for section in config.rewards.values():
        if isinstance(section, OwnReward):
            reward.installed.check(section.type)


def _check_rewards(config: Config) -> None:
    check_reward_names(config)
    for name, section in config.rewards.items():
        if isinstance(section, OwnReward):
            check_file(section.type)
        elif isinstance(section, JudgeConfig):
            load_judge_template(section.template_name)
        elif isinstance(section, RewardModelConfig) and not Path(section.path).is_dir():
            raise ValueError(
                f"rewards.{name}.path '{section.path}': no such folder; name the checkpoint of a "
                "reward model"
            )


def _check_environment(config: Config) -> None:
    """Check an environment's names and files; what they hold is checked in the sandbox later."""
    environment = config.environment
    if environment is None:
        return
    own = []
    if isinstance(environment, EnvironmentConfig) and environment.parser:
        own = [environment.parser]
    for name in environment.tools if isinstance(environment, ToolsConfig) else ():
        if is_tool_file(name) or is_server_list(name):
            check_is_file(Path(name).expanduser())
        else:
            TOOLS.check(name)
    for spec in (*environment.specs, *own):
        check_file(spec)
