"""Keys that a run would not read: they are refused, so that no setting does nothing."""

from __future__ import annotations

from mmr1.config.rows import OFFLINE, POLICY, TRAINING, Row
from mmr1.config.tree import Config
from mmr1.section import Section


def _set(section: Section, *keys: str) -> bool:
    """True if one of the keys has another value than its default."""
    fields = type(section).model_fields
    return any(
        getattr(section, key) != fields[key].get_default(call_default_factory=True) for key in keys
    )


def _in_this_process(c: Config) -> bool:
    return not c.distributed and not c.resources.auto


def _samples_itself(c: Config) -> bool:
    """The engine is part of this process; vLLM runs in a separate one."""
    return c.samples and _in_this_process(c) and not c.rollout.uses_vllm


def _bound_without_weights(c: Config) -> bool:
    weights = c.algorithm.importance_sampling
    if weights is None or c.resources.auto or c.resolved_rollout_is != "none":
        return False
    return _set(weights, "threshold")


def _continues_nothing(c: Config) -> bool:
    queue = c.rollout.queue
    return queue.at_new_weights != "continue" and _set(queue, "kv_cache")


IDLE: tuple[Row, ...] = (
    Row(
        ("trainer.step_files",),
        lambda c: _set(c.trainer, "step_files"),
        "this command writes no step files; leave it out",
        OFFLINE,
    ),
    Row(
        ("data.curriculum",),
        lambda c: c.data.curriculum is not None,
        "this command does not choose samples by their pass rates; leave it out",
        OFFLINE,
    ),
    Row(
        ("trainer.validation.steps", "trainer.validation.before_train"),
        lambda c: (
            c.trainer.validation is not None
            and (c.trainer.validation.steps is not None or c.trainer.validation.before_train)
        ),
        "this command evaluates after its last step, or never; leave them out",
        OFFLINE,
    ),
    Row(
        ("resources.engines",),
        lambda c: c.resources.engines > 1 and not c.samples,
        "this command samples nothing; leave it out",
        OFFLINE,
    ),
    Row(
        ("trainer.log_completions_steps",),
        lambda c: _set(c.trainer, "log_completions_steps"),
        "this command logs all of its completions, or has none; leave it out",
        OFFLINE,
    ),
    Row(
        ("trainer.vision_use_steps",),
        lambda c: c.trainer.vision_use_steps is not None,
        "this command does not measure whether completions depend on images; leave it out",
        OFFLINE,
    ),
    Row(
        ("rollout.max_restarts", "resources.engines"),
        lambda c: _samples_itself(c) and _set(c.rollout, "max_restarts"),
        "this engine is part of this process, which cannot restart it; leave it out, sample with "
        "vLLM, or run on Ray: resources.ray={}, or several ranks or engines",
        TRAINING,
    ),
    Row(
        ("rollout.timeout_s", "resources.engines"),
        lambda c: _samples_itself(c) and c.environment is None and _set(c.rollout, "timeout_s"),
        "this engine is part of this process, which waits for it; leave it out, sample with vLLM, "
        "or run on Ray: resources.ray={}, or several ranks or engines",
        TRAINING,
    ),
    Row(
        ("rollout.queue.kv_cache", "rollout.queue.at_new_weights"),
        _continues_nothing,
        "no completion continues with new weights, and none has keys and values to keep; leave "
        "kv_cache out",
        POLICY,
    ),
    Row(
        ("rollout.queue.window", "rollout.queue.at_new_weights"),
        lambda c: not c.rollout.streams and _set(c.rollout.queue, "window"),
        "whole steps are sampled in turn, and no group passes another; leave window out",
        POLICY,
    ),
    Row(
        ("resources.collective_timeout_s", "resources.ranks"),
        lambda c: _in_this_process(c) and _set(c.resources, "collective_timeout_s"),
        "one process has no collective operations; leave it out, or set several ranks",
        TRAINING,
    ),
    Row(
        (
            "algorithm.rollout_correction.importance_sampling.threshold",
            "algorithm.rollout_correction.importance_sampling.level",
            "rollout.engine.type",
        ),
        _bound_without_weights,
        "this engine samples from the very weights that are updated, and level=auto has no weights "
        "then; set level to token or sequence, or leave threshold out",
    ),
)
"""Each is one key, or one set of keys, whose value this run would not look at."""
