"""TRL's DPO and SFT as ours: the keys that are carried over together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1_contrib.migrate import trl_keys as keys
from mmr1_contrib.migrate import trl_shared as shared
from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.source import Carry, Source
from mmr1_contrib.migrate.trl_shared import Batches


def _common(flat: Tree, migration: Migration) -> None:
    shared.processes(flat, migration)
    shared.data(flat, migration)
    shared.model(flat, migration)
    shared.optimizer(flat, migration)
    migration.set("data.train_batch_size", shared.rows_per_update(flat))
    flat.pop("gradient_accumulation_steps")
    batches = Batches()
    if flat["eval_strategy"] not in ("no", False):
        migration.note(
            "eval_strategy", flat.pop("eval_strategy"), "only mmr1 train validates; mmr1 eval "
            "evaluates a checkpoint",
        )  # fmt: skip
        migration.tree.get("trainer", {}).pop("validation", None)
        flat["eval_strategy"] = "no"
        if "eval_steps" in flat:
            migration.note("eval_steps", flat.pop("eval_steps"), "see eval_strategy")
    shared.validation(flat, migration, batches)
    shared.trainer(flat, migration, batches)
    longest, cut = flat.pop("max_length"), flat.pop("truncation_mode", None)
    migration.note("max_length", longest, "rows are not cut here")
    if cut is not None:
        migration.note("truncation_mode", cut, "rows are not cut here")


def _dpo(flat: Tree, migration: Migration) -> None:
    kinds, weights = flat.pop("loss_type"), flat.pop("loss_weights", None)
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    weights = [weights] if isinstance(weights, int | float) else weights
    if weights is not None and len(weights) != len(kinds):
        raise ValueError(f"loss_weights: {len(weights)} for {len(kinds)} losses; give one for each")
    share = dict(zip(kinds, weights or [1.0] * len(kinds), strict=True))
    likelihood = share.pop("sft", None)
    kind = next((name for name in share if name in keys.DPO_LOSSES), "sigmoid")
    for other in share:
        if other != kind:
            migration.note("loss_type", other, f"no such loss here; it is {kind}")
    migration.set("dpo.loss.type", kind)
    migration.set("dpo.loss.beta", flat.pop("beta"))
    if likelihood:
        migration.set("dpo.loss.nll_coef", likelihood / share.get(kind, 1.0))
        migration.note("loss_type", "sft", "the mean of each answer, in TRL of all their tokens")
    if share.get(kind, 1.0) != 1:
        migration.note("loss_weights", weights, "the loss has weight 1, so the gradient is scaled")
    smoothing = flat.pop("label_smoothing")
    if kind == "robust":
        migration.set("dpo.loss.label_smoothing", smoothing)
    elif smoothing:
        migration.note("label_smoothing", smoothing, f"TRL does not read it with {kind}")
    for key, usual in (("f_divergence_type", "reverse_kl"), ("use_weighting", False)):
        if (value := flat.pop(key)) != usual:
            migration.note(key, value, f"it is {usual} here")
    if (share_of_tail := flat.pop("ld_alpha", None)) is not None:
        migration.note("ld_alpha", share_of_tail, "tokens have one weight")


def _sft(flat: Tree, migration: Migration) -> None:
    if (kind := flat.pop("loss_type")) not in ("nll", "chunked_nll"):
        migration.note("loss_type", kind, "no such loss here; it is nll")
    if flat.pop("packing", False):
        rows = flat["per_device_train_batch_size"] * flat["num_processes"]
        rows *= int(flat["gradient_accumulation_steps"])
        migration.note(
            "packing", True, f"a batch of TRL's then has {rows} packed sequences of max_length="
            f"{flat['max_length']} tokens, here {rows} rows; set data.train_batch_size to the rows "
            "that fill them",
        )  # fmt: skip
    for key in ("completion_only_loss", "assistant_only_loss"):
        if (only := flat.pop(key, None)) is not None:
            migration.note(key, only, "the loss is always of the answers only")
    if "dataset_name" in flat:
        migration.notes.append(
            "completion_only_loss: the loss is of the answers only; TRL's is of the whole text "
            "where the rows are not prompts with answers"
        )


def _source(
    name: str, title: str, command: str, own: Carry, telling: tuple[str, ...],
    lists: Mapping[str, Any],
) -> Source:  # fmt: skip
    return Source(
        project="trl",
        kind=f"trl-{name}",
        title=f"TRL 1.16 {title}",
        program=shared.programs(name),
        if_named=(f"{name}*.py", f"*/{name}*.py"),
        arguments="options",
        config_argument="config",
        is_theirs=shared.has_any(*telling),
        carry=(own, _common),
        defaults={**keys.DEFAULTS, **keys.OFFLINE_DEFAULTS, **lists["defaults"]},
        older=keys.OLDER,
        renamed={**keys.RENAMED, **lists.get("renamed", {})},
        composed={**keys.COMPOSED, **keys.OFFLINE_COMPOSED, **lists["composed"]},
        unneeded={**keys.OFFLINE_UNNEEDED, **lists.get("unneeded", {}), **keys.UNNEEDED},
        command=command,
    )


DPO = _source(
    "dpo", "DPOConfig", "dpo", _dpo,
    ("loss_weights", "f_divergence_type", "label_smoothing", "precompute_ref_log_probs"),
    {
        "defaults": keys.DPO_DEFAULTS, "composed": keys.DPO_COMPOSED,
        "unneeded": keys.DPO_UNNEEDED,
    },
)  # fmt: skip
SFT = _source(
    "sft", "SFTConfig", "sft", _sft,
    ("packing", "completion_only_loss", "assistant_only_loss", "packing_strategy"),
    {
        "defaults": keys.SFT_DEFAULTS, "composed": keys.SFT_COMPOSED,
        "unneeded": keys.SFT_UNNEEDED,
    },
)  # fmt: skip
