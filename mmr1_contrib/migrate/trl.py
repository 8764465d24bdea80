"""TRL's GRPO and RLOO as ours: the keys that are carried over together with others."""

from __future__ import annotations

from mmr1_contrib.migrate import trl_keys as keys
from mmr1_contrib.migrate import trl_shared as shared
from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.shared import set_correction, set_kl, set_lengths, set_sampled
from mmr1_contrib.migrate.source import Source
from mmr1_contrib.migrate.trl_shared import Batches


def _common(flat: Tree, migration: Migration) -> None:
    migration.set("data.format", "trl")
    shared.processes(flat, migration)
    shared.data(flat, migration)
    shared.model(flat, migration)
    shared.optimizer(flat, migration)
    batches = _batches(flat, migration)
    _reference(flat, migration, batches, flat.pop("beta"))
    shared.validation(flat, migration, batches)
    shared.trainer(flat, migration, batches)
    _rollout(flat, migration)
    _rewards(flat, migration)


def _batches(flat: Tree, migration: Migration) -> Batches:
    """Set batches, which count completions there."""
    n, accumulated = flat["num_generations"], int(flat["gradient_accumulation_steps"])
    update = shared.rows_per_update(flat)
    size, parts = flat.pop("generation_batch_size", None), flat.pop("steps_per_generation", None)
    flat.pop("gradient_accumulation_steps")
    if size is None:
        size = update * parts // accumulated if parts is not None else update
    if size % n:
        raise ValueError(
            f"a rollout has {size} completions, which num_generations={n} does not divide; with "
            "several processes, add num_processes=N"
        )
    migration.set("data.train_batch_size", size // n)
    if update < size and update % n == 0 and size % update == 0:
        migration.set("algorithm.ppo_mini_batch_size", update // n)
    elif update < size:
        migration.note(
            "steps_per_generation", parts, f"an optimizer step has {update} completions, which is "
            f"no whole number of groups of {n}; here it has all {size}",
        )  # fmt: skip
        update = size
    if update == size:  # the only mini-batch is the rollout
        migration.tree["algorithm"]["loss"].pop("agg_scope", None)
    return Batches(flat["num_iterations"] * max(1, size // update))


def _reference(flat: Tree, migration: Migration, batches: Batches, beta: float) -> None:
    moves, share = flat.pop("sync_ref_model"), flat.pop("ref_model_mixup_alpha")
    every = flat.pop("ref_model_sync_steps")
    if moves and beta:
        moving = {"type": "moving", "sync_steps": batches.steps(every), "mixup_alpha": share}
        migration.set("algorithm.kl.reference", moving)
    elif moves:
        migration.note("sync_ref_model", True, "there is no reference: beta is 0")


def _rollout(flat: Tree, migration: Migration) -> None:
    by_vllm, share = flat.pop("use_vllm"), flat.pop("vllm_gpu_memory_utilization")
    size = flat.pop("vllm_tensor_parallel_size")
    migration.set("rollout.engine", {"type": "vllm" if by_vllm else "hf"})
    if by_vllm:
        migration.set("rollout.engine.gpu_memory_utilization", share)
        migration.set("rollout.engine.tensor_parallel_size", size)
    response, prompt = flat.pop("max_completion_length"), flat.pop("max_prompt_length", None)
    window = flat.pop("vllm_max_model_length", None)
    if window is not None:
        prompt = window - response
    elif prompt is None:
        prompt = max(4096 - response, 2048)
        migration.note(
            "vllm_max_model_length", None, "TRL does not bound prompts; rollout.max_prompt_length "
            f"is {prompt} here, and longer ones are left out",
        )  # fmt: skip
    set_lengths(migration, prompt, response)
    if (penalty := flat.pop("repetition_penalty")) != 1:
        migration.note("repetition_penalty", penalty, "tokens are sampled as the policy has them")
    if not flat.pop("shuffle_dataset"):
        migration.note("shuffle_dataset", False, "the data are always shuffled, by seed")
    for key in [key for key in flat if key.startswith("chat_template_kwargs.")]:
        name = key.removeprefix("chat_template_kwargs.")
        migration.set(f"data.chat_template_kwargs.{name}", flat.pop(key))
    for key in [key for key in flat if key.startswith("generation_kwargs")]:
        migration.note(key, flat.pop(key), "set it in rollout, if it is there: top_k, stop, ...")
    samples = flat.pop("num_generations_eval", None)
    if samples is not None or migration.tree["trainer"].get("validation"):
        n = flat["num_generations"] if samples is None else samples
        set_sampled(migration, n, *(flat[key] for key in ("temperature", "top_p", "top_k")))


def _rewards(flat: Tree, migration: Migration) -> None:
    given, weights = flat.pop("reward_funcs", None), flat.pop("reward_weights", None)
    model = flat.pop("reward_model_name_or_path", None)
    if model is not None:
        migration.note(
            "reward_model_name_or_path", model, "a reward function that asks that model, by URL or "
            "from a file, in rewards",
        )  # fmt: skip
    if given is None:
        migration.notes.append(
            "reward_funcs: not given: TRL's functions are in the Python of the script; name them "
            "in rewards as file.py:function (docs/rewards.md)"
        )
        if weights is not None:
            migration.note("reward_weights", weights, "the weights in rewards")
        return
    names = [given] if isinstance(given, str) else list(given)
    weights = [weights] if isinstance(weights, int | float) else weights
    if weights is not None and len(weights) != len(names):
        raise ValueError(
            f"reward_weights: {len(weights)} for {len(names)} reward_funcs; give one for each"
        )
    functions: Tree = {}
    for name, weight in zip(names, weights or [1.0] * len(names), strict=True):
        if name == "accuracy_reward":
            functions["math"] = {"weight": weight}
            migration.note("reward_funcs", name, "math, which also reads answers without LaTeX")
            continue
        path = name if "." in name else f"trl.rewards.{name}"
        functions[name.rpartition(".")[2]] = {"type": path, "weight": weight}
        if "." not in name:
            migration.note("reward_funcs", name, f"{path}, where TRL is installed")
    migration.set("rewards", functions)


def _grpo(flat: Tree, migration: Migration) -> None:
    loss, level = flat.pop("loss_type"), flat.pop("importance_sampling_level")
    taus = [flat.pop(f"sapo_temperature_{sign}") for sign in ("pos", "neg")]
    low, high = flat.pop("epsilon"), flat.pop("epsilon_high", None)
    delta = flat.pop("delta", None)
    name = loss if loss in ("cispo", "sapo") else "grpo"
    if level not in ("token", "sequence"):
        migration.note("importance_sampling_level", level, "no such ratio here; it is token")
    if loss not in keys.AGGREGATIONS:
        migration.note("loss_type", loss, "no such loss here; it is dapo's")
        loss = "dapo"
    migration.set("algorithm.name", name)
    of_sequences = name == "grpo" and level == "sequence"
    if of_sequences:
        migration.set("algorithm.loss.type", "gspo")
    migration.set("algorithm.loss.agg_mode", keys.AGGREGATIONS[loss])
    if loss in ("dapo", "cispo"):
        migration.set("algorithm.loss.agg_scope", "rollout")
    if loss == "bnpo":
        migration.note("loss_type", loss, "the mean over a mini-batch, in TRL over a micro-batch")
    _advantage(flat, migration)
    if name == "cispo":
        largest = low if high is None else high
        if largest < 1:
            raise ValueError(
                f"epsilon_high={largest}: for loss_type=cispo it is the largest weight itself, "
                "e.g. 5; give epsilon_high=5"
            )
        migration.set("algorithm.loss.clip_ratio_low", 1.0)
        migration.set("algorithm.loss.clip_ratio_high", largest - 1.0)
    elif name == "sapo":
        migration.set("algorithm.loss.tau_pos", taus[0])
        migration.set("algorithm.loss.tau_neg", taus[1])
    else:
        migration.set("algorithm.loss.clip_ratio_low", low)
        migration.set("algorithm.loss.clip_ratio_high", low if high is None else high)
    if name == "grpo" and delta is not None:
        migration.set("algorithm.loss.clip_ratio_dual", delta)
        if delta < 1 + (low if high is None else high):
            migration.note(
                "delta", delta, "bounds ratios where the advantage is negative, in TRL others too; "
                "there the upper clip is above it",
            )  # fmt: skip
    elif delta is not None:
        migration.note("delta", delta, f"TRL does not read it with loss_type={loss}")
    if name != "grpo" and level != "token":
        migration.note("importance_sampling_level", level, f"{name} has the ratio of each token")
    if flat["mask_truncated_completions"] and loss in ("grpo", "sapo", "luspo"):
        migration.note(
            "mask_truncated_completions", True, f"TRL's {loss} divides by the masked completions "
            "too, so its gradient is smaller by their share",
        )  # fmt: skip
    if loss == "luspo" and (level == "token" or flat["beta"]):
        migration.note(
            "loss_type", loss, "terms of tokens, with importance_sampling_level=token and beta, "
            "are summed over each completion, in TRL multiplied by its length and averaged over "
            "the padded one",
        )  # fmt: skip
    _grpo_kl(flat, migration)
    _grpo_tokens(flat, migration, loss, of_sequences)
    _correction(flat, migration)


def _advantage(flat: Tree, migration: Migration) -> None:
    scale = flat.pop("scale_rewards")
    scale = {True: "group", False: "none"}.get(scale, scale)
    if scale not in keys.SCALES:
        raise ValueError(f"scale_rewards={scale}: it can be group, batch or none")
    aggregation = flat.pop("multi_objective_aggregation")
    if aggregation != "normalize_then_sum":
        migration.set("algorithm.advantage.scale_rewards", scale)
        if scale != "none":
            migration.set("algorithm.advantage.epsilon", 1e-4)
    if aggregation == "normalize_then_sum":
        migration.set("algorithm.advantage.type", "gdpo")
        if scale != "group":
            migration.note(
                "scale_rewards", scale, "gdpo divides by the deviation of each group, and then of "
                "the batch",
            )  # fmt: skip


def _grpo_kl(flat: Tree, migration: Migration) -> None:
    beta, corrected = flat["beta"], flat.pop("use_bias_correction_kl")
    if beta:
        set_kl(migration, beta, True, "k3")
        migration.set("algorithm.kl.use_bias_correction_kl", corrected)


def _grpo_tokens(flat: Tree, migration: Migration, loss: str, of_sequences: bool) -> None:
    """The entropy bonus, and the tokens and completions that the loss leaves out."""
    if bonus := flat.pop("entropy_coef"):
        migration.set("algorithm.entropy.coef", bonus)
    if bonus and keys.AGGREGATIONS[loss] != "token-mean":
        migration.note("entropy_coef", bonus, "its mean is that of the loss, in TRL over tokens")
    if flat.pop("use_adaptive_entropy"):
        migration.note("use_adaptive_entropy", True, "algorithm.entropy.target has another rule")
    share = flat.pop("top_entropy_quantile")
    if share < 1 and of_sequences:
        migration.note(
            "top_entropy_quantile", share, "a ratio of completions learns from all of their tokens"
        )
    elif share < 1:
        migration.set("algorithm.loss.top_entropy_quantile", share)
        if bonus:
            migration.note("entropy_coef", bonus, "of all tokens, in TRL of those that stay")
    if (most := flat.pop("off_policy_mask_threshold", None)) is not None:
        migration.set("algorithm.rollout_correction.off_policy_mask_threshold", most)


def _correction(flat: Tree, migration: Migration) -> None:
    """Set the correction for the engine's probabilities, with vLLM only."""
    names = ("correction", "mode", "clip_max", "clip_min")
    on, mode, most, least = (flat.pop(f"vllm_importance_sampling_{n}", None) for n in names)
    if not on or not flat["use_vllm"]:
        set_correction(migration, None)
        return
    set_correction(migration, mode.partition("_")[0], most)
    if mode.endswith("mask"):
        migration.note(
            "vllm_importance_sampling_mode", mode, "weights above the bound are lowered to it, in "
            "TRL set to 0",
        )  # fmt: skip
    if least is not None:
        migration.note("vllm_importance_sampling_clip_min", least, "weights have no lower bound")


def _rloo(flat: Tree, migration: Migration) -> None:
    """Set RLOO: one action is a whole completion; the KL of its tokens is taken off its reward."""
    low, high = flat.pop("epsilon"), flat.pop("epsilon_high", None)
    migration.set("algorithm.name", "rloo")
    loss = {"type": "sequence_ppo", "clip_ratio_low": low}
    migration.set("algorithm.loss", {**loss, "clip_ratio_high": low if high is None else high})
    if flat["beta"]:
        set_kl(migration, flat["beta"], False, "k1")
    if flat.pop("normalize_advantages"):
        migration.note(
            "normalize_advantages", True, "advantages are not divided by their deviation"
        )
    set_correction(migration, None)


GRPO = Source(
    project="trl",
    kind="trl-grpo",
    title="TRL 1.16 GRPOConfig",
    program=(*shared.programs("grpo"), *shared.programs("gspo")),
    if_named=("*.py",),
    arguments="options",
    config_argument="config",
    is_theirs=shared.has_any(*keys.GRPO_COMPOSED, "num_generations", "max_completion_length"),
    carry=(_grpo, _common),
    defaults={**keys.DEFAULTS, **keys.ONLINE_DEFAULTS, **keys.GRPO_DEFAULTS},
    older=keys.OLDER,
    renamed={**keys.RENAMED, **keys.ONLINE_RENAMED},
    composed={**keys.COMPOSED, **keys.ONLINE_COMPOSED, **keys.GRPO_COMPOSED},
    unneeded={**keys.ONLINE_UNNEEDED, **keys.GRPO_UNNEEDED, **keys.UNNEEDED},
)

RLOO = Source(
    project="trl",
    kind="trl-rloo",
    title="TRL 1.16 RLOOConfig",
    program=shared.programs("rloo"),
    if_named=("*rloo*.py",),
    arguments="options",
    config_argument="config",
    is_theirs=shared.has_any(*keys.RLOO_COMPOSED, *keys.RLOO_RENAMED),
    carry=(_rloo, _common),
    defaults={**keys.DEFAULTS, **keys.ONLINE_DEFAULTS, **keys.RLOO_DEFAULTS},
    older=keys.OLDER,
    renamed={**keys.RENAMED, **keys.ONLINE_RENAMED, **keys.RLOO_RENAMED},
    composed={**keys.COMPOSED, **keys.ONLINE_COMPOSED, **keys.RLOO_COMPOSED},
    unneeded={**keys.ONLINE_UNNEEDED, **keys.UNNEEDED},
)
