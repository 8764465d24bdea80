"""The configuration: a tree of pydantic models in which nonsense cannot be written.

What can be off is a section that is null, and its keys stand inside it. Alternatives have a
``type``, and each type has the keys that it reads. ``algorithm.name`` is a preset: values and
nothing else. What no shape can say is one table, ``checks.py``.

``tree.py`` puts the sections together and ``file.py`` reads YAML files. This package is data only:
it imports nothing of the trainer.
"""

from mmr1.config.algorithm import (
    AlgorithmConfig,
    RangeConfig,
    ReplayConfig,
    ResampleConfig,
)
from mmr1.config.data import CurriculumConfig, DataConfig
from mmr1.config.environment import (
    EnvironmentConfig,
    OwnEnvironment,
    ToolsConfig,
)
from mmr1.config.evaluation import EvalConfig
from mmr1.config.kl import (
    KlFull,
    KlLoss,
    KlReward,
)
from mmr1.config.model import (
    LoraConfig,
    ModelConfig,
    NewLoraConfig,
    OptimizerConfig,
    StoredLoraConfig,
)
from mmr1.config.reward_spec import read_rewards
from mmr1.config.rollout import RolloutConfig, SamplingConfig
from mmr1.config.trainer import (
    ResourcesConfig,
    TrainerConfig,
)
from mmr1.config.tree import Config
from mmr1.config.views import ViewsConfig
from mmr1.engines.vllm import VllmConfig
from mmr1.rewards.kind import RewardConfig
from mmr1.rewards.scoring import ScoringConfig
from mmr1.section import Section

__all__ = [
    "AlgorithmConfig",
    "Config",
    "CurriculumConfig",
    "DataConfig",
    "EnvironmentConfig",
    "EvalConfig",
    "KlFull",
    "KlLoss",
    "KlReward",
    "LoraConfig",
    "ModelConfig",
    "NewLoraConfig",
    "OptimizerConfig",
    "OwnEnvironment",
    "RangeConfig",
    "ReplayConfig",
    "ResampleConfig",
    "ResourcesConfig",
    "RewardConfig",
    "RolloutConfig",
    "SamplingConfig",
    "ScoringConfig",
    "Section",
    "StoredLoraConfig",
    "ToolsConfig",
    "TrainerConfig",
    "ViewsConfig",
    "VllmConfig",
    "read_rewards",
]
