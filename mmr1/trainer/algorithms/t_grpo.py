"""T-GRPO (arXiv 2503.21776): GRPO that pays for using the order of a video's frames.

A second rollout answers with the frames shuffled; the reward part ``temporal_contrast`` pays right
answers a bonus where the ordered frames did better.
"""

from __future__ import annotations

from dataclasses import replace

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import grpo
from mmr1.trainer.algorithms.algorithm import Algorithm


def build(config: AlgorithmConfig) -> Algorithm:
    return replace(grpo.build(config), shuffled_frames=True)
