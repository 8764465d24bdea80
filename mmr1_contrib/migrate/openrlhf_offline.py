"""OpenRLHF's ``train_sft``, ``train_dpo``, ``train_rm``, ``train_kto`` and ``train_prm`` as ours.

The latter two are of 0.7 to 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmr1_contrib.migrate import openrlhf_keys as shared
from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.openrlhf import set_datasets, set_kept, set_optimizer, set_weights
from mmr1_contrib.migrate.source import Carry, Source

DEFAULTS: Tree = {
    "model.gradient_checkpointing_enable": False,
    "optim": "adam",
    "adam.betas": [0.9, 0.95],
    "adam.eps": 1e-8,
    "adam.weight_decay": 0.0,
    "lr_scheduler": "cosine_with_min_lr",
    "lr_warmup_ratio": 0.03,
    "min_lr_ratio": 0.1,
    "max_norm": 1.0,
    "train.batch_size": 128,
    "train.seed": 42,
    "data.dataset_split": "train",
    **{
        key: shared.DEFAULTS[key]
        for key in (
            "ds.param_dtype", "ds.adam_offload", "ds.lora.rank", "ds.lora.alpha", "ds.lora.dropout",
            "ds.lora.target_modules", "ckpt.output_dir", "ckpt.save_steps", "ckpt.max_num",
            "logger.logging_steps",
        )
    },
}  # fmt: skip

RENAMED = {
    "model.model_name_or_path": "model.path",
    "model.gradient_checkpointing_enable": "model.gradient_checkpointing",
    "adam.lr": "optimizer.lr",
    "adam.betas": "optimizer.betas",
    "adam.weight_decay": "optimizer.weight_decay",
    "max_norm": "optimizer.max_grad_norm",
    "lr_warmup_ratio": "optimizer.scheduler.warmup_steps",
    "ds.adam_offload": "optimizer.offload",
    "train.seed": "seed",
    "train.full_determinism_enable": "full_determinism",
    "train.max_epochs": "trainer.total_epochs",
    "logger.logging_steps": "trainer.logging_steps",
}
TRANSLATED = {
    "lr_scheduler": shared.TRANSLATED["actor.lr_scheduler"],
    "ds.param_dtype": shared.TRANSLATED["ds.param_dtype"],
}
COMPOSED = {
    "optim": "adam: AdamW; muon is noted",
    "adam.eps": "none: 1e-8",
    "min_lr_ratio": "`optimizer.scheduler.min_lr`, times lr",
    "train.batch_size": "`data.train_batch_size`",
    "data.dataset": "`data.train`; several files: a mapping to weights",
    "data.dataset_probs": "`data.train`: the weights",
    "data.dataset_split": "`data.train`: NAME@SPLIT",
    "data.max_len": "none: rows are not cut",
    **{
        key: shared.COMPOSED[key]
        for key in (
            "bf16", "ds.lora.rank", "ds.lora.alpha", "ds.lora.dropout", "ds.lora.target_modules",
            "ds.load_in_4bit", "ckpt.output_dir", "ckpt.save_steps", "ckpt.max_num",
            "logger.wandb.key", "logger.wandb.project", "logger.wandb.run_name",
            "logger.tensorboard_dir",
        )
    },
}  # fmt: skip
_ROWS = "the format of the rows tells what they are; docs/datasets.md has the columns"
UNNEEDED = {
    "data.prompt_key": _ROWS,
    "data.chosen_key": _ROWS,
    "data.rejected_key": _ROWS,
    "data.input_template": "the chat template is always applied",
    "data.tokenizer_chat_template": "data.chat_template, a .jinja file",
    "data.multiturn": "every answer of a conversation is learned",
    "eval": "only mmr1 train validates; mmr1 eval evaluates a checkpoint",
    "model.aux_loss_coef": "only mmr1 train has it: algorithm.router_aux_loss_coef",
    "model.gradient_checkpointing_reentrant": "a matter of speed and memory alone",
    "muon": "AdamW is the optimizer",
    **{
        key: shared.UNNEEDED[key]
        for key in (
            "ref", "train.micro_batch_size", "ds", "ckpt.path",
            "ckpt.save_hf", "ckpt.disable_ds", "ckpt.max_mem", "ckpt.load_enable",
            "data.max_samples", "data.apply_chat_template", "data.disable_fast_tokenizer",
            "data.dataloader_num_workers", "logger.wandb", "local_rank", "use_ms",
            "exclude_modules",
        )
    },
}  # fmt: skip

# Names of 0.7 to 0.9, where they are not those of train_ppo_ray.
OLDER = {
    **{
        old: today
        for old, today in shared.OLDER.items()
        if today in DEFAULTS or any(today == n or today.startswith(f"{n}.") for n in UNNEEDED)
    },
    "pretrain": "model.model_name_or_path",
    "gradient_checkpointing": "model.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "model.gradient_checkpointing_reentrant",
    "learning_rate": "adam.lr",
    "l2": "adam.weight_decay",
    "adam_betas": "adam.betas",
    "max_epochs": "train.max_epochs",
    "max_len": "data.max_len",
    "dataset": "data.dataset",
    "input_key": "data.input_key",
    "dataset_probs": "data.dataset_probs",
    "train_split": "data.dataset_split",
    "output_key": "data.output_key",
    "prompt_key": "data.prompt_key",
    "chosen_key": "data.chosen_key",
    "rejected_key": "data.rejected_key",
    "multiturn": "data.multiturn",
    "tokenizer_chat_template": "data.tokenizer_chat_template",
    "aux_loss_coef": "model.aux_loss_coef",
    "ref_pretrain": "ref.model_name_or_path",
    "ref_offload": "ref.offload",
    "beta": "model.beta",
    "ipo": "model.ipo_enable",
    "label_smoothing": "model.label_smoothing",
    "nll_loss_coef": "model.nll_loss_coef",
    "pretrain_mode": "model.pretrain_mode_enable",
    "loss": "model.loss_type",
    "margin_loss": "model.margin_loss_enable",
    "compute_fp32_loss": "model.compute_fp32_loss_enable",
    "use_wandb": "logger.wandb.key",
    "use_tensorboard": "logger.tensorboard_dir",
    "wandb_project": "logger.wandb.project",
    "wandb_run_name": "logger.wandb.run_name",
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """The special keys of one of the programs.

    Attributes:
        today: It is in 0.11 too.
    """

    name: str
    command: str
    carry: Carry
    defaults: Tree
    composed: Mapping[str, str]
    settings: Mapping[str, tuple[str, ...]]
    today: bool = True


def _common(flat: Tree, migration: Migration) -> None:
    migration.note("data.max_len", flat.pop("data.max_len"), "rows are not cut here")
    set_datasets(flat, migration, "data.dataset", "data.dataset")
    migration.set("data.train_batch_size", flat.pop("train.batch_size"))
    set_optimizer(flat, migration, "")
    set_weights(flat, migration)
    migration.set("trainer.output_dir", flat.pop("ckpt.output_dir"))
    set_kept(flat, migration)


def _sft(flat: Tree, migration: Migration) -> None:
    _columns(flat, migration, {"data.input_key": "prompt", "data.output_key": "completion"})
    if flat.pop("model.pretrain_mode_enable"):
        migration.note(
            "model.pretrain_mode_enable", True, "the loss is of the answers only, not of the whole "
            "text",
        )  # fmt: skip


def _dpo(flat: Tree, migration: Migration) -> None:
    migration.set("dpo.loss.type", "ipo" if flat["model.ipo_enable"] else "sigmoid")
    migration.set("dpo.loss.beta", flat.pop("model.beta"))
    migration.set("dpo.loss.nll_coef", flat.pop("model.nll_loss_coef"))
    smoothing = flat.pop("model.label_smoothing")
    if flat.pop("model.ipo_enable"):
        migration.note(
            "model.ipo_enable", True, "log-ratios are means over tokens, in OpenRLHF sums"
        )
        if smoothing:
            migration.note("model.label_smoothing", smoothing, "OpenRLHF does not read it with ipo")
    else:
        migration.set("dpo.loss.label_smoothing", smoothing)
    if (path := flat.pop("ref.model_name_or_path", None)) not in (
        None,
        flat.get("model.model_name_or_path"),
    ):
        migration.note("ref.model_name_or_path", path, "the reference is the model at the start")


def _rm(flat: Tree, migration: Migration) -> None:
    if (kind := flat.pop("model.loss_type")) != "sigmoid":
        migration.note("model.loss_type", kind, "the loss is Bradley-Terry's, sigmoid")
    if flat.pop("model.margin_loss_enable"):
        migration.note("model.margin_loss_enable", True, "pairs have no margin")
    flat.pop("model.compute_fp32_loss_enable")  # as it is here


def _columns(flat: Tree, migration: Migration, names: Mapping[str, str]) -> None:
    """Set columns of the data that have other names here."""
    for key, ours in names.items():
        if (name := flat.pop(key, None)) not in (ours, None):
            migration.notes.append(f"{key}: rename the column '{name}' of the data to '{ours}'")


def _kto(flat: Tree, migration: Migration) -> None:
    migration.set("dpo.loss.type", "kto")
    migration.set("dpo.loss.beta", flat.pop("model.beta"))
    for kind in ("desirable", "undesirable"):
        migration.set(f"dpo.loss.{kind}_weight", flat.pop(f"{kind}_loss_weight"))
    _columns(
        flat,
        migration,
        {"data.input_key": "prompt", "data.output_key": "completion", "label_key": "label"},
    )


def _prm(flat: Tree, migration: Migration) -> None:
    migration.set("rm.type", "process")
    for key in _OF_STEPS:
        if (value := flat.pop(key, None)) is not None:
            migration.note(key, value, _STEPS)
    migration.notes.append(
        "the loss of a step is the cross-entropy of its label by a new head of one number; "
        "OpenRLHF's is by the model's own logits of the reward tokens"
    )


_OF_STEPS = ("data.input_key", "label_key", "placeholder_token", "reward_tokens")
_STEPS = (
    "rows have the texts of the steps in 'completions' and their labels in 'labels'; cut the text "
    "at the placeholder and write the tokens as true and false"
)
_KINDS = (
    _Kind(
        "sft", "sft", _sft,
        {
            "adam.lr": 5e-6, "train.max_epochs": 2, "data.max_len": 2048,
            "model.pretrain_mode_enable": False, "data.input_key": "input",
        },
        {
            "model.pretrain_mode_enable": "none: the loss is always of the answers only",
            "data.input_key": "rename the column to prompt",
            "data.output_key": "rename the column to completion",
        },
        {"train.batch_size": ("data.train_batch_size",), "adam.lr": ("optimizer.lr",)},
    ),
    _Kind(
        "dpo", "dpo", _dpo,
        {
            "adam.lr": 1e-5, "train.max_epochs": 1, "data.max_len": 512, "model.beta": 0.1,
            "model.ipo_enable": False, "model.label_smoothing": 0.0, "model.nll_loss_coef": 0.0,
        },
        {
            "model.beta": "`dpo.loss.beta`",
            "model.ipo_enable": "`dpo.loss.type=ipo`, else sigmoid",
            "model.label_smoothing": "`dpo.loss.label_smoothing`",
            "model.nll_loss_coef": "`dpo.loss.nll_coef`",
            "ref.model_name_or_path": "none: the reference is the model at the start",
        },
        {
            "model.beta": ("dpo.loss.beta",), "model.ipo_enable": ("dpo.loss.type",),
            "model.label_smoothing": ("dpo.loss.label_smoothing",),
            "model.nll_loss_coef": ("dpo.loss.nll_coef",),
            "train.batch_size": ("data.train_batch_size",),
        },
    ),
    _Kind(
        "rm", "rm", _rm,
        {
            "adam.lr": 9e-6, "train.max_epochs": 1, "data.max_len": 512,
            "model.loss_type": "sigmoid", "model.margin_loss_enable": False,
            "model.compute_fp32_loss_enable": False,
        },
        {
            "model.loss_type": "sigmoid",
            "model.margin_loss_enable": "none: pairs have no margin",
            "model.compute_fp32_loss_enable": "rewards are always float32",
        },
        {"model.loss_type": ("rm.type",), "train.batch_size": ("data.train_batch_size",)},
    ),
    _Kind(
        "kto", "dpo", _kto,
        {
            "adam.lr": 1e-5, "train.max_epochs": 1, "data.max_len": 2048, "model.beta": 0.01,
            "desirable_loss_weight": 1.0, "undesirable_loss_weight": 1.0,
            "data.input_key": "input", "label_key": "label",
        },
        {
            "model.beta": "`dpo.loss.beta`, with `dpo.loss.type=kto`",
            "desirable_loss_weight": "`dpo.loss.desirable_weight`",
            "undesirable_loss_weight": "`dpo.loss.undesirable_weight`",
            "data.input_key": "rename the column to prompt",
            "data.output_key": "rename the column to completion",
            "label_key": "rename the column to label",
        },
        {
            "model.beta": ("dpo.loss.beta",),
            "desirable_loss_weight": ("dpo.loss.desirable_weight",),
            "undesirable_loss_weight": ("dpo.loss.undesirable_weight",),
            "train.batch_size": ("data.train_batch_size",),
        },
        today=False,
    ),
    _Kind(
        "prm", "rm", _prm,
        {"adam.lr": 1e-6, "train.max_epochs": 1, "data.max_len": 2048},
        dict.fromkeys(_OF_STEPS, "none: steps and labels have separate columns"),
        {"train.batch_size": ("data.train_batch_size",), "adam.lr": ("optimizer.lr",)},
        today=False,
    ),
)  # fmt: skip


def _has_dots(keys: Mapping[str, Any]) -> bool:
    own = any(key.startswith(("adam.", "train.")) for key in keys)
    return own or "model.model_name_or_path" in keys


def _has_none(keys: Mapping[str, Any]) -> bool:
    return bool(keys.keys() & {"pretrain", "train_batch_size", "learning_rate"})


def _source(kind: _Kind, is_old: bool) -> Source:
    defaults = {**DEFAULTS, **kind.defaults, **({"bf16": False} if is_old else {})}
    if is_old:
        del defaults["ds.param_dtype"]
    version = "0.7" if is_old else "0.11"
    return Source(
        project="openrlhf",
        kind=f"openrlhf-{kind.name}-{version}",
        title=f"OpenRLHF train_{kind.name} {version}",
        program=(f"openrlhf.cli.train_{kind.name}", f"*/train_{kind.name}.py"),
        arguments="options",
        is_theirs=_has_none if is_old else _has_dots,
        carry=(kind.carry, _common),
        defaults=defaults,
        older=OLDER if is_old else {},
        renamed=RENAMED,
        translated=TRANSLATED,
        composed={**COMPOSED, **kind.composed},
        unneeded=UNNEEDED,
        loss_settings=kind.settings,
        command=kind.command,
    )


OFFLINE = tuple(
    _source(kind, is_old) for kind in _KINDS for is_old in (False, True) if is_old or kind.today
)
