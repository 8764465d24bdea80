"""The environment that a configuration names."""

from __future__ import annotations

import math

from mmr1.config import CustomEnvironmentConfig, EnvironmentConfig
from mmr1.environments.environment import Environment
from mmr1.environments.own import OwnEnvironment
from mmr1.environments.schemas import described
from mmr1.environments.tools import ToolEnvironment


def build_environment(config: EnvironmentConfig, timeout_s: float = math.inf) -> Environment:
    """Tools, or a class of one's own; its processes are started.

    Args:
        config: The section ``environment``.
        timeout_s: Seconds that the tools of one conversation may take together.

    Raises:
        ValueError: A tool or the class cannot be loaded.
    """
    if not isinstance(config, CustomEnvironmentConfig) or described(config):
        return ToolEnvironment(config, timeout_s)
    fields = type(config).model_fields
    for key in ("parser", "max_calls", "boxes"):
        if (value := getattr(config, key)) != fields[key].default:
            raise ValueError(
                f"environment.{key}={value}: {config.use} reads the text of a turn itself and has "
                f"no described tools; leave environment.{key} out"
            )
    return OwnEnvironment(config)
