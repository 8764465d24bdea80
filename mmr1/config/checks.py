"""Checks across sections: a table of refused combinations, and one of warnings.

A row is data. The loader reports all rows that hold, not the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmr1.algorithms import LossConfig, advantage, loss
from mmr1.algorithms.advantages.process import ProcessAdvantage
from mmr1.config.environment import EnvironmentConfig
from mmr1.config.evaluation import EvalConfig
from mmr1.config.idle import IDLE
from mmr1.config.kl import KlFull, KlLoss
from mmr1.config.presets import PRESETS
from mmr1.config.rewards import PluginConfig
from mmr1.config.rollout import HfConfig
from mmr1.config.rows import ALL, OFFLINE, TRAINING, Row
from mmr1.config.tree import Config
from mmr1.section import Section

REWARD_MODEL = "reward_model"  # as mmr1.rewards.builtin has it
VISION = {"vision_tower", "multi_modal_projector"}


def check(config: Config) -> None:
    """Refuse a configuration in which a row of :data:`REFUSED` holds.

    Raises:
        ValueError: One line for each such row.
    """
    if problems := problems_of(config):
        raise ValueError("\n".join(problems))


def problems_of(config: Config) -> list[str]:
    """One line for each row of :data:`REFUSED` that holds."""
    rows = (*REFUSED, *config.declaration.refused, *_needs(config, warns=False))
    return _matching_rows(rows, config)


def warnings_of(config: Config) -> list[str]:
    """One line for each row of :data:`WARNED` that holds."""
    rows = (*WARNED, *config.declaration.warned, *_needs(config, warns=True))
    return _matching_rows(rows, config)


def check_own_parts(config: Config) -> None:
    """Check the advantage and the loss of a user's own code with the rest of the configuration.

    Raises:
        ValueError: If one cannot be loaded, has other settings, or a need of it is broken.
    """
    algorithm = config.algorithm
    parts = {
        "advantage": advantage.resolved(algorithm.advantage),
        "loss": loss.resolved(algorithm.loss),
    }
    check(config.model_copy(update={"algorithm": algorithm.model_copy(update=parts)}))


def _needs(config: Config, warns: bool) -> Iterator[Row]:
    """Yield the needs of the sections that the command reads."""
    for key in config.sections:
        for section in _within(getattr(config, key)):
            for need in section.needs:
                if need.warns == warns:
                    yield Row(need.keys, need.broken, need.why, need.commands)


def _within(value: Any) -> Iterator[Section]:
    """Yield the section that a value is, and those within it."""
    if isinstance(value, Section):
        yield value
        value = dict(value)
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _within(inner)


def _matching_rows(rows: Sequence[Row], config: Config) -> list[str]:
    return [
        row.message(config)
        for row in rows
        if config.declaration.kind in row.kinds and row.wrong(config)
    ]


# Arithmetic ------------------------------------------------------------------------------------


def _nothing_for_reward_ranks(c: Config) -> bool:
    holds = c.rewards.uses(REWARD_MODEL) or isinstance(c.algorithm.advantage, ProcessAdvantage)
    return c.resources.reward_ranks > 1 and not (holds and c.distributed)


def _only_warm_up(c: Config) -> bool:
    known = c.trainer.max_steps is not None
    return known and c.policy_steps <= 0


def _best(c: Config) -> str:
    checkpoints = c.trainer.checkpoints
    return (checkpoints and checkpoints.metric_for_best_model) or ""


def _unvalidated_checkpoints(c: Config) -> bool:
    every = c.trainer.eval_steps
    return _best(c).startswith("eval/") and (not every or c.trainer.save_steps % every > 0)


def _unknown_validation(c: Config) -> bool:
    kind, _, way = _best(c).partition("/")
    return kind == "eval" and way.partition("/")[0] not in c.eval.ways


# Groups and names ------------------------------------------------------------------------------


def _group_of_one(c: Config) -> bool:
    compares = c.algorithm.advantage.compares_group or c.algorithm.filter_groups is not None
    return c.rollout.n < 2 and compares


def _names(c: Config) -> Iterator[str | None]:
    """The reward functions that keys name."""
    if c.declaration.kind == "policy":
        yield None if c.data.curriculum is None else c.data.curriculum.function
        within = c.algorithm.resamples and c.algorithm.resamples.range
        named = within.metric.partition("/")[0] if within else "overall"
        yield None if named == "overall" else named
    if c.samples:
        yield from (c.eval.accuracy_function, c.eval.best_of)


# Advantage, loss and KL ------------------------------------------------------------------------


def _no_divergence(c: Config) -> bool:
    ptx = c.algorithm.ptx
    return ptx is not None and ptx.loss == "distillation" and not isinstance(c.algorithm.kl, KlFull)


def _no_surplus(c: Config) -> bool:
    resamples = c.algorithm.resamples
    return resamples is not None and resamples.keep_surplus and resamples.gen_batch_size is None


# Engine and LoRA -------------------------------------------------------------------------------


def _ahead_of_itself(c: Config) -> bool:
    is_hf = isinstance(c.rollout.engine, HfConfig)
    return is_hf and c.rollout.max_off_policy_steps > 0 and not c.distributed


def _window_beyond_groups(c: Config) -> bool:
    groups = (c.rollout.max_off_policy_steps + 1) * c.data.train_batch_size
    return c.rollout.streams and c.rollout.queue.window > groups


def _draws_or_keeps(c: Config) -> bool:
    resamples = c.algorithm.resamples
    in_draws = resamples is not None and resamples.gen_batch_size is not None
    return c.algorithm.learns_from_earlier or in_draws


def _scores_batches(c: Config) -> bool:
    functions = c.rewards.functions.values()
    return any(isinstance(f, PluginConfig) and f.call == "batch" for f in functions)


def _averaged_adapters(c: Config) -> bool:
    alpha = getattr(c.algorithm.reference, "mixup_alpha", 1.0)
    return c.model.lora is not None and alpha < 1


def _adapters_alone(c: Config) -> bool:
    lora = c.model.lora
    if lora is None or lora.merge:
        return False
    other = not c.rollout.uses_vllm
    return other or not c.model.freeze_vision_tower or lora.load_in_4bit


def _keeps_completions(c: Config) -> bool:
    """True if checkpoints hold completions that a step is still to learn from."""
    return c.algorithm.learns_from_earlier or c.rollout.streams


def _routes(c: Config) -> bool:
    return c.algorithm.compares_experts or c.algorithm.router_aux_loss_coef is not None


# Views ----------------------------------------------------------------------------------------


def _samples_beside(c: Config) -> bool:
    return c.rollout.views is not None and c.rollout.views.loss == "none"


def _reads_clean_view(c: Config) -> bool:
    return c.rollout.views is not None and c.rollout.views.loss == "clean"


def _learns_own_view(c: Config) -> bool:
    return c.rollout.views is not None and c.rollout.views.loss == "own"


# Environment -----------------------------------------------------------------------------------


def _one_text(c: Config) -> bool:
    reads_text = isinstance(c.algorithm.advantage, ProcessAdvantage)
    return c.environment is not None and (reads_text or c.rewards.uses("reward_model"))


REFUSED: tuple[Row, ...] = (
    *IDLE,
    Row(
        ("algorithm.ppo_mini_batch_size", "data.train_batch_size"),
        lambda c: bool(c.data.train_batch_size % (c.algorithm.ppo_mini_batch_size or 1)),
        "the first does not divide the second, and mini-batches have equally many prompts; change "
        "one of them",
    ),
    Row(
        ("algorithm.ptx.batch_size", "algorithm.ppo_mini_batch_size"),
        lambda c: c.algorithm.ptx is not None and c.algorithm.ptx.batch_size < c.mini_batches,
        "each mini-batch of a rollout takes its share of the demonstrations; raise one of them",
    ),
    Row(
        ("rollout.engine.type", "resources.engines", "resources.ranks"),
        lambda c: c.rollout.colocated and c.resources.engines not in (1, c.engines),
        "colocated engines have the GPUs of the ranks; leave resources.engines out",
    ),
    Row(
        ("resources.ranks", "rollout.engine.tensor_parallel_size", "rollout.engine.engine_kwargs"),
        lambda c: c.rollout.colocated and c.resources.ranks % c.rollout.gpus_per_engine > 0,
        "an engine shares the GPUs of so many ranks, those of all its pipeline stages; set "
        "resources.ranks to a multiple",
    ),
    Row(
        ("resources.reward_ranks",),
        _nothing_for_reward_ranks,
        "a run in one process holds its reward models itself, and one without reward models has "
        "none to hold; leave it out",
        ALL,
    ),
    Row(
        ("algorithm.advantage.critic.warmup_steps", "trainer.max_steps"),
        _only_warm_up,
        "the policy would never learn; lower the first or raise the second",
    ),
    Row(
        (
            "trainer.checkpoints.metric_for_best_model",
            "trainer.checkpoints.save_steps",
            "trainer.validation.steps",
        ),
        _unvalidated_checkpoints,
        "every checkpoint needs a validation; make save_steps a multiple of validation.steps",
        TRAINING,
    ),
    Row(
        ("trainer.checkpoints.metric_for_best_model", "eval.sampled", "eval.views"),
        _unknown_validation,
        "no validation logs it; eval/greedy is always there, eval/sampled with eval.sampled, "
        "eval/greedy_VIEW with eval.views, and each also with a reward's name: eval/greedy/format",
    ),
    Row(
        ("rollout.n", "algorithm.advantage.type"),
        _group_of_one,
        "a group of one has no baseline and no signal; set rollout.n to 2 or more",
    ),
    Row(
        (
            "data.curriculum.function",
            "algorithm.filter_groups.range.metric",
            "eval.accuracy_function",
            "eval.sampled.best_of",
        ),
        lambda c: any(name is not None and name not in c.rewards.functions for name in _names(c)),
        "one of them names a reward function that is not in rewards.functions; add it there, or "
        "name another",
        ALL,
    ),
    Row(
        ("algorithm.advantage.type", "algorithm.loss.type"),
        lambda c: c.algorithm.advantage.per_token and c.algorithm.loss.per_completion,
        "these advantages are of tokens, and this loss has one ratio per completion; change one "
        "of them",
    ),
    Row(
        ("algorithm.ptx.loss", "algorithm.kl.type"),
        _no_divergence,
        "it measures at the demonstrations what kl.type=full measures; set that, or leave ptx.loss "
        "out",
    ),
    Row(
        ("algorithm.kl.reference.type", "rollout.temperature"),
        lambda c: c.algorithm.reference_is_served and c.rollout.temperature != 1,
        "a server gives log-probs at temperature 1; set rollout.temperature=1, or name a model "
        "directory",
    ),
    Row(
        ("algorithm.kl.reference.type", "rollout.top_p"),
        lambda c: c.algorithm.reference_is_served and c.rollout.cuts,
        "a server gives log-probs over all tokens, and the policy's are over those that top_p, "
        "top_k and min_p keep; leave these out, or name a model directory",
    ),
    Row(
        ("algorithm.filter_groups.type", "algorithm.advantage.normalize_rewards"),
        lambda c: c.algorithm.replay is not None and c.algorithm.normalize_rewards,
        "earlier rewards would be counted again; leave one of them out",
    ),
    Row(
        ("algorithm.filter_groups.type", "algorithm.rollout_correction.importance_sampling"),
        lambda c: c.algorithm.learns_from_earlier and c.algorithm.importance_sampling is None,
        "completions of earlier policies need the correction; leave importance_sampling out",
    ),
    Row(
        ("algorithm.filter_groups.keep_surplus", "algorithm.filter_groups.gen_batch_size"),
        _no_surplus,
        "as many prompts are drawn as groups are missing, so there is no surplus; set "
        "gen_batch_size, e.g. to data.train_batch_size",
    ),
    Row(
        ("rollout.engine.type", "rollout.max_off_policy_steps"),
        _ahead_of_itself,
        "that engine samples from the very model that is being updated; set rollout.engine=vllm, "
        "or several ranks or engines",
    ),
    Row(
        ("rollout.engine.type", "rollout.max_off_policy_steps"),
        lambda c: c.rollout.colocated and c.rollout.max_off_policy_steps > 0,
        "engines sleep while the ranks learn, and sample nothing ahead; set "
        "rollout.max_off_policy_steps=0, or rollout.engine=vllm",
    ),
    Row(
        ("rollout.queue.at_new_weights", "rollout.max_off_policy_steps"),
        lambda c: c.rollout.streams and c.rollout.max_off_policy_steps == 0,
        "nothing is sampled while the trainer learns; set max_off_policy_steps to 1 or more",
        TRAINING,
    ),
    Row(
        ("rollout.queue.window", "rollout.max_off_policy_steps", "data.train_batch_size"),
        _window_beyond_groups,
        "no more groups are under way than (max_off_policy_steps + 1) * train_batch_size; lower "
        "the window",
    ),
    Row(
        ("rollout.queue.at_new_weights", "full_determinism"),
        lambda c: c.rollout.streams and c.full_determinism,
        "which weights sample a token depends on timing; leave one of them out",
    ),
    Row(
        ("rollout.queue.at_new_weights", "environment"),
        lambda c: c.rollout.streams and c.environment is not None,
        "turns of conversations are not streamed; leave at_new_weights out: max_off_policy_steps "
        "alone samples them ahead",
    ),
    Row(
        ("rollout.queue.at_new_weights", "model.lora.merge"),
        lambda c: c.rollout.streams and c.model.sync_adapters_only,
        "vLLM cannot exchange the adapters of unfinished completions; leave one of them out",
    ),
    Row(
        ("rollout.queue.at_new_weights", "algorithm.filter_groups.type"),
        lambda c: c.rollout.streams and _draws_or_keeps(c),
        "streaming draws a prompt for each group that is dropped, and no token may be older than "
        "its bound; leave gen_batch_size, keep_surplus and replay out",
    ),
    Row(
        ("rollout.queue.at_new_weights", "rollout.views"),
        lambda c: c.rollout.streams and c.rollout.views is not None,
        "a group that is streamed has one view; leave one of them out",
    ),
    Row(
        ("rollout.engine.type", "eval.vision_use"),
        lambda c: c.rollout.colocated and c.eval.vision_use,
        "the policy leaves its GPU to colocated engines while they evaluate; leave vision_use out, "
        "and measure a checkpoint by mmr1 eval",
    ),
    Row(
        ("resources.engines", "eval.vision_use"),
        lambda c: c.engines > 1 and c.eval.vision_use,
        "one process computes it, which has one engine; leave resources.engines out",
        ("evaluation",),
    ),
    Row(
        ("rollout.views.loss", "rewards.functions.temporal_contrast"),
        lambda c: _samples_beside(c) != c.rewards.uses("temporal_contrast"),
        "that reward compares with completions beside each group, and nothing else reads these; "
        "T-GRPO is both: rollout.views={view: shuffle, loss: none} and the reward",
    ),
    Row(
        ("rollout.views.loss", "algorithm.advantage.critic"),
        lambda c: _learns_own_view(c) and c.algorithm.critic is not None,
        "a critic has one prompt for each group; set rollout.views.loss=clean",
    ),
    Row(
        ("rollout.queue.at_new_weights", "rewards.functions"),
        lambda c: c.rollout.streams and _scores_batches(c),
        "groups are scored as they end, and no function with call=batch sees all of a step; set "
        "call=group, or leave at_new_weights out",
    ),
    Row(
        ("model.lora", "algorithm.kl.reference.mixup_alpha"),
        _averaged_adapters,
        "LoRA adapters cannot be averaged; leave one of them out",
    ),
    Row(
        ("model.lora", "optimizer.lr_of_parts"),
        lambda c: c.model.lora is not None and bool(c.optimizer.frozen_parts),
        "adapters are trained and no other weight is; name the adapted layers in "
        "model.lora.target_modules, and leave rates of 0 out",
        TRAINING,
    ),
    Row(
        ("model.freeze_vision_tower", "optimizer.lr_of_parts"),
        lambda c: c.model.freeze_vision_tower and bool(VISION & c.optimizer.lr_of_parts.keys()),
        "the first freezes the tower and its projector; leave one of them out. lr_of_parts="
        "{vision_tower: 0} freezes the tower alone, {multi_modal_projector: 0} the projector",
        TRAINING,
    ),
    Row(
        ("model.lora.merge", "rollout.engine.type", "model.freeze_vision_tower"),
        _adapters_alone,
        "only vLLM adds adapters itself, not to a vision tower, and not to weights in 4 bits; "
        "leave model.lora.merge out, or change that",
    ),
    Row(
        ("environment", "algorithm.advantage.type", "rewards.functions"),
        _one_text,
        "process supervision and reward models read a completion as one text; leave one of them "
        "out",
    ),
    Row(
        ("environment", "algorithm.filter_groups.type"),
        lambda c: c.environment is not None and c.algorithm.learns_from_earlier,
        "replay and keep_surplus keep completions without what tools showed in them; leave one of "
        "them out",
    ),
    Row(
        ("environment", "rollout.views"),
        lambda c: c.environment is not None and c.rollout.views is not None,
        "a tool would show the original; leave one of them out",
    ),
    Row(
        ("algorithm.router_replay", "environment"),
        lambda c: c.algorithm.compares_experts and c.environment is not None,
        "the turns of a conversation are separate requests, and the experts of what stands between "
        "them are not known; leave one of them out",
    ),
    Row(
        ("algorithm.router_replay", "algorithm.filter_groups.type", "rollout.queue.at_new_weights"),
        lambda c: c.algorithm.compares_experts and _keeps_completions(c),
        "checkpoints keep completions without their experts; leave replay, keep_surplus and "
        "at_new_weights out",
    ),
    Row(
        ("algorithm.router_replay", "rollout.views.loss"),
        lambda c: c.algorithm.compares_experts and _reads_clean_view(c),
        "the engine chose experts for pictures that the update does not see; set "
        "rollout.views.loss=own, or leave router_replay out",
    ),
    Row(
        ("algorithm.router_replay", "resources.context_parallel_size"),
        lambda c: _routes(c) and c.resources.context_parallel_size > 1,
        "routers are followed where a rank has whole sequences; leave router_replay and "
        "router_aux_loss_coef out, or set context_parallel_size=1",
    ),
    Row(
        ("environment", "rollout.stop"),
        lambda c: c.environment is not None and bool(c.rollout.stop),
        "a stop string could end a turn within a call; leave one of them out",
    ),
    Row(
        ("rollout.min_p", "rollout.engine.engine_kwargs"),
        lambda c: c.rollout.speculates and c.rollout.min_p > 0,
        "vLLM takes no min_p where it verifies drafts; set rollout.top_p, or leave speculation out",
        ALL,
    ),
)
"""Combinations that would fail, or of which one key would do nothing."""


def _clips_nothing(c: Config) -> bool:
    """True for a clip that the user set, not the preset, where no update can differ."""
    loss = c.algorithm.loss
    if c.updates > 1:
        return False
    written = {key: value for key, value in loss if key.startswith("clip_ratio")}
    return any(value != _preset_value(c, loss, key) for key, value in written.items())


def _preset_value(c: Config, loss: LossConfig, key: str) -> object:
    preset = PRESETS[c.algorithm.name]["loss"]
    field = type(loss).model_fields[key]
    same = preset["type"] == type(loss).model_fields["type"].default
    return preset.get(key, field.default) if same else field.default


def _biased_kl(c: Config) -> bool:
    kl = c.algorithm.kl
    return isinstance(kl, KlLoss) and kl.estimator == "k1" and not kl.use_bias_correction_kl


def _evaluates(c: Config) -> bool:
    """True if a key of ``eval`` is set, besides the one that also ranks or labels completions."""
    return c.eval.changed(accuracy_function=None) != EvalConfig()


def _of_eval_alone(c: Config) -> bool:
    """True if a key of ``eval`` is set that a run's own evaluation does not read."""
    return bool(c.eval.data or c.eval.models or c.eval.prompt or c.eval.output_dir)


WARNED: tuple[Row, ...] = (
    Row(
        ("trainer.validation",),
        lambda c: (
            c.trainer.validation is not None and not c.samples and not c.declaration.evaluates
        ),
        "this command evaluates nothing; evaluate the checkpoint with mmr1 eval",
        OFFLINE,
    ),
    Row(
        ("eval", "trainer.validation.data"),
        lambda c: c.samples and c.trainer.validation is None and _evaluates(c),
        "this run evaluates nothing without trainer.validation.data; mmr1 eval reads the section "
        "eval of its file",
        TRAINING,
    ),
    Row(
        ("eval.data", "eval.models", "eval.prompt", "eval.output_dir"),
        lambda c: c.trainer.validation is not None and _of_eval_alone(c),
        "only mmr1 eval reads them; a run is evaluated on trainer.validation.data, by its own "
        "prompt",
        TRAINING,
    ),
    Row(
        ("algorithm.loss.clip_ratio_low", "algorithm.loss.clip_ratio_high"),
        _clips_nothing,
        "with one update per rollout every ratio is 1, and nothing is clipped; set "
        "algorithm.ppo_mini_batch_size, or ppo_epochs above 1",
    ),
    Row(
        ("algorithm.loss.agg_scope",),
        lambda c: c.algorithm.loss.agg_scope == "rollout" and c.mini_batches < 2,
        "the only mini-batch is the whole rollout; set algorithm.ppo_mini_batch_size",
    ),
    Row(
        ("algorithm.kl.type", "algorithm.kl.estimator"),
        _biased_kl,
        "in the loss the expected gradient of k1 is 0; set estimator to k2 or k3, or "
        "kl.type=reward",
    ),
    Row(
        ("eval.sampled.best_of", "eval.sampled.n"),
        lambda c: c.eval.best_of is not None and c.eval.n < 2,
        "of one completion there is none to pick; raise eval.sampled.n",
        ("policy", "evaluation"),
    ),
    Row(
        ("environment.sandbox",),
        lambda c: isinstance(c.environment, EnvironmentConfig) and c.environment.sandbox is None,
        "tools run without walls, on text that the policy writes: they read, write, start and "
        "reach what you can; leave it out for tools that need none of it",
        ("policy", "evaluation"),
    ),
)
"""Combinations that run as they are written and do less than they seem to, or are open to more."""
