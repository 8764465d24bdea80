"""An environment of the library ``verifiers`` as an agent program: it asks the policy itself."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from mmr1.types import Sample


async def run(client: Any, sample: Sample, *, env: Mapping[str, Any]) -> float:
    """One episode of the environment; the mean of its traces' rewards.

    The environment's own task is the prompt: the sample's column ``task_index`` is its number in
    the taskset.

    Args:
        env: Section ``env`` of a run of ``verifiers``: ``{taskset: {id: ...}, ...}``.

    Raises:
        RuntimeError: The episode failed.
    """
    from verifiers.v1 import EvalClientConfig, ModelContext, SamplingConfig
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    environment = load_environment(resolve_env_config(dict(env)))
    (task,) = environment.taskset.include(idx=[sample.meta["task_index"]])
    policy = EvalClientConfig(base_url=str(client.base_url), api_key_var="OPENAI_API_KEY")
    context = ModelContext(client=policy, model="policy", sampling=SamplingConfig())
    async with environment.serving():
        episode = await environment.run_episode(task, context)
    errors = [*episode.errors, *(e for trace in episode.traces for e in trace.errors)]
    if errors:
        raise RuntimeError("; ".join(f"{e.type}: {e.message}" for e in errors))
    return fmean(trace.reward for trace in episode.traces)
