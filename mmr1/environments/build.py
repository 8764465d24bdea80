"""The environment that a configuration names."""

from __future__ import annotations

from mmr1.config import EnvironmentConfig
from mmr1.config.environment import TOOLS
from mmr1.environments.environment import Environment
from mmr1.environments.own import OwnEnvironment
from mmr1.environments.tools import ToolEnvironment


def build_environment(config: EnvironmentConfig) -> Environment:
    """Tools, or a class of one's own; its processes are started.

    Raises:
        ValueError: A tool or the class cannot be loaded.
    """
    return ToolEnvironment(config) if config.use == TOOLS else OwnEnvironment(config)
