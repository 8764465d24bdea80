"""The configuration: one pydantic model per section, with every default.

``tree.py`` puts the sections together. ``file.py`` reads YAML files. Unknown keys are refused.
"""

from mmr1.config.algorithm import AlgorithmConfig, CriticConfig, ReplayConfig
from mmr1.config.data import CurriculumConfig, DataConfig
from mmr1.config.dpo import DpoConfig
from mmr1.config.environment import EnvironmentConfig
from mmr1.config.model import LoraConfig, ModelConfig, OptimizerConfig
from mmr1.config.rewards import RewardFunctionConfig, RewardsConfig
from mmr1.config.rollout import EvalConfig, RolloutConfig, SamplingConfig
from mmr1.config.section import Dtype, Section
from mmr1.config.trainer import (
    IterateConfig,
    ResourcesConfig,
    RewardModelConfig,
    SftConfig,
    TrainerConfig,
)
from mmr1.config.tree import Config

__all__ = [
    "AlgorithmConfig",
    "Config",
    "CriticConfig",
    "CurriculumConfig",
    "DataConfig",
    "DpoConfig",
    "Dtype",
    "EnvironmentConfig",
    "EvalConfig",
    "IterateConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ReplayConfig",
    "ResourcesConfig",
    "RewardFunctionConfig",
    "RewardModelConfig",
    "RewardsConfig",
    "RolloutConfig",
    "SamplingConfig",
    "Section",
    "SftConfig",
    "TrainerConfig",
]
