"""The configuration: a tree of pydantic models in which nonsense cannot be written.

What can be off is a section that is null, and its keys stand inside it. Alternatives have a
``type``, and each type has the keys that it reads. ``algorithm.name`` is a preset: values and
nothing else. What no shape can say is one table, ``checks.py``.

``tree.py`` puts the sections together and ``file.py`` reads YAML files. This package is data only:
it imports nothing of the trainer.
"""

from mmr1.config.advantages import (
    AdvantageConfig,
    CriticConfig,
    CustomAdvantage,
    DistillationAdvantage,
    GaeAdvantage,
    GdpoAdvantage,
    GigpoAdvantage,
    GpgAdvantage,
    GrpoAdvantage,
    OptimalBaselineAdvantage,
    PassAtKAdvantage,
    ProcessAdvantage,
    ReinforceAdvantage,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    RemaxAdvantage,
    RlooAdvantage,
    ServedModel,
    TeacherModel,
)
from mmr1.config.algorithm import (
    AlgorithmConfig,
    RangeConfig,
    ReplayConfig,
    ResampleConfig,
)
from mmr1.config.data import CurriculumConfig, DataConfig
from mmr1.config.environment import (
    CustomEnvironmentConfig,
    EnvironmentConfig,
    ToolsConfig,
)
from mmr1.config.evaluation import EvalConfig
from mmr1.config.kl import (
    KlFull,
    KlLoss,
    KlReward,
    NearModelReference,
)
from mmr1.config.losses import (
    CispoLoss,
    ClipCovLoss,
    CustomLoss,
    GspoLoss,
    KlCovLoss,
    LossConfig,
    PpoKlLoss,
    PpoLoss,
    ReinforceLoss,
    SapoLoss,
    SequencePpoLoss,
)
from mmr1.config.model import (
    LoraConfig,
    ModelConfig,
    NewLoraConfig,
    OptimizerConfig,
    StoredLoraConfig,
)
from mmr1.config.rewards import (
    PluginConfig,
    RewardFunctionConfig,
    RewardsConfig,
    reward_function,
)
from mmr1.config.rollout import (
    ColocatedVllmConfig,
    CustomEngineConfig,
    RolloutConfig,
    SamplingConfig,
    VllmArguments,
    VllmConfig,
)
from mmr1.config.trainer import (
    ResourcesConfig,
    TrainerConfig,
)
from mmr1.config.tree import Config
from mmr1.config.views import ViewsConfig
from mmr1.section import Section

__all__ = [
    "AdvantageConfig",
    "AlgorithmConfig",
    "CispoLoss",
    "ClipCovLoss",
    "ColocatedVllmConfig",
    "Config",
    "CriticConfig",
    "CurriculumConfig",
    "CustomAdvantage",
    "CustomEngineConfig",
    "CustomEnvironmentConfig",
    "CustomLoss",
    "DataConfig",
    "DistillationAdvantage",
    "EnvironmentConfig",
    "EvalConfig",
    "GaeAdvantage",
    "GdpoAdvantage",
    "GigpoAdvantage",
    "GpgAdvantage",
    "GrpoAdvantage",
    "GspoLoss",
    "KlCovLoss",
    "KlFull",
    "KlLoss",
    "KlReward",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "NearModelReference",
    "NewLoraConfig",
    "OptimalBaselineAdvantage",
    "OptimizerConfig",
    "PassAtKAdvantage",
    "PluginConfig",
    "PpoKlLoss",
    "PpoLoss",
    "ProcessAdvantage",
    "RangeConfig",
    "ReinforceAdvantage",
    "ReinforceLoss",
    "ReinforcePpAdvantage",
    "ReinforcePpBaselineAdvantage",
    "RemaxAdvantage",
    "ReplayConfig",
    "ResampleConfig",
    "ResourcesConfig",
    "RewardFunctionConfig",
    "RewardsConfig",
    "RlooAdvantage",
    "RolloutConfig",
    "SamplingConfig",
    "SapoLoss",
    "Section",
    "SequencePpoLoss",
    "ServedModel",
    "StoredLoraConfig",
    "TeacherModel",
    "ToolsConfig",
    "TrainerConfig",
    "ViewsConfig",
    "VllmArguments",
    "VllmConfig",
    "reward_function",
]
