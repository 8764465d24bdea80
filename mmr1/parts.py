"""The parts of a run, for custom loops; ``scripts/examples/training_loop.py`` uses them all.

Data: ``read_records`` gives samples, ``Sampler`` their order, and ``renderer`` makes prompts of
them. Models: ``build_training_models`` gives the model and its ``policy``, and ``HfEngine`` samples
from it. A step: ``requests_for`` prompts, ``RewardManager`` scores the completions, and
``build_experience`` gives the advantages that ``policy.update`` learns from.
"""

from mmr1.data.record import read_records
from mmr1.data.rendering import renderer
from mmr1.data.sampler import Sampler
from mmr1.rewards import build_composite_reward
from mmr1.rewards.plugins.user_function import CallableReward
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import complete, requests_for
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.models.training_models import build_training_models
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.tiny import new_model

__all__ = [
    "CallableReward",
    "HfEngine",
    "Models",
    "RewardManager",
    "Sampler",
    "build_algorithm",
    "build_composite_reward",
    "build_experience",
    "build_training_models",
    "complete",
    "family_of",
    "media_cache",
    "new_model",
    "read_records",
    "renderer",
    "requests_for",
]
