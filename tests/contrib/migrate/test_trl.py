"""TRL's own examples, carried over with TRL's own defaults; what cannot be is said."""

from __future__ import annotations

import dataclasses
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from torch.nn.functional import logsigmoid

from mmr1.config import Config
from mmr1.config.file import config_from
from mmr1.config.kl import KlReward, MovingReference
from mmr1_contrib.migrate import trl_keys
from mmr1_contrib.migrate.reading import with_arguments
from mmr1_contrib.migrate.source import Source, migrate
from mmr1_contrib.migrate.sources import SOURCES
from mmr1_contrib.offline.preference_losses import PairScores, loss_on_pairs
from mmr1_contrib.offline.sections import DpoConfig
from tests.contrib.migrate.checks import all_notes, loaded, silent_keys, unlisted_keys
from tests.contrib.migrate.losses import (
    EACH,
    LONGEST,
    REWARDS,
    Tensors,
    check_equal,
    our_loss,
    tensors,
    tokens,
)

EXAMPLES: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "examples/trl.yaml").read_text()
)
KINDS = {source.kind: source for source in SOURCES if source.project == "trl"}


def source_of(example: str) -> Source:
    kind = re.search(r"/(grpo|gspo|rloo|dpo|sft)\w*\.py", example)[1]
    return KINDS[f"trl-{kind.replace('gspo', 'grpo')}"]


def migrated(kind: str, *overrides: str):
    base = {"model_name_or_path": "m", "num_processes": 4}
    source = KINDS[f"trl-{kind}"]
    return migrate(source, with_arguments(base, overrides, source))


def config_of(kind: str, *overrides: str) -> Config:
    return loaded(KINDS[f"trl-{kind}"], migrated(kind, *overrides))


SCRIPT = r"""
ACCELERATE_LOG_LEVEL=info accelerate launch --config_file zero3.yaml \
    examples/scripts/grpo_vlm.py \
    --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct \
    --learning_rate 1e-5 --beta 0.04 --no_shuffle_dataset \
    --use_vllm --use_peft --lora_target_modules "q_proj", "v_proj" \
    --gradient_accumulation_steps 4 --steps_per_generation 8 --max_steps=100 \
    --reward_funcs accuracy_reward my.rewards.short --reward_weights 1.0 0.5 \
    --num_genrations 4
"""


def test_a_script_as_it_stands(tmp_path: Path, mmr1):
    (tmp_path / "zero3.yaml").write_text("num_processes: 8\n")
    (tmp_path / "run.sh").write_text(SCRIPT)
    code, output, message = mmr1("migrate", tmp_path / "run.sh", "seed=7")
    assert code == 0, message
    assert "read as TRL 1.16 GRPOConfig" in output
    assert "num_genrations: 4: no key that is known here, and left out (did you mean" in output
    ours = config_from(yaml.safe_load(output))
    # 8 rows, 8 processes, 8 steps: 512 completions of 8 per prompt; half of them per update.
    assert (ours.data.train_batch_size, ours.rollout.n) == (64, 8)
    assert (ours.algorithm.ppo_mini_batch_size, ours.trainer.max_steps) == (32, 50)
    assert (ours.trainer.save_steps, ours.seed, ours.optimizer.lr) == (250, 7, 1e-5)
    assert ours.model.lora.target_modules == ("q_proj", "v_proj")
    assert ours.model.lora.dropout == 0.05
    algorithm = ours.algorithm
    assert (algorithm.kl.coef, algorithm.kl.use_bias_correction_kl) == (0.04, True)
    assert (algorithm.loss.agg_mode, algorithm.loss.agg_scope) == ("token-mean", "rollout")
    engine = ours.rollout.engine
    assert (engine.type, engine.gpu_memory_utilization) == ("vllm", 0.3)
    assert algorithm.importance_sampling.level == "sequence"
    assert {n: f.weight for n, f in ours.rewards.items()} == {"math": 1.0, "short": 0.5}


def test_yaml_and_the_kind_of_trainer(tmp_path: Path, mmr1):
    (tmp_path / "c.yaml").write_text("{model_name_or_path: m, dataset_name: a/b, max_steps: 9}\n")
    code, _, message = mmr1("migrate", tmp_path / "c.yaml", "--from", "trl")
    assert code == 2
    assert "add --from trl-rloo, or trl-grpo" in message
    code, output, message = mmr1("migrate", tmp_path / "c.yaml", "--from", "trl-sft")
    assert code == 0, message
    assert "run it with mmr1 sft" in output
    assert yaml.safe_load(output)["data"]["train"] == "a/b@train"
    (tmp_path / "c.yaml").write_text("{model_name_or_path: m, num_generations: 4}\n")
    code, output, _ = mmr1("migrate", tmp_path / "c.yaml", "beta=0.1", "--check")
    assert code == 0
    assert re.search(r"num_generations +4 +n +4", output)
    (tmp_path / "run.sh").write_text(f"trl dpo --config {tmp_path}/c.yaml --beta 0.3\n")
    code, output, message = mmr1("migrate", tmp_path / "run.sh")
    assert code == 0, message
    assert yaml.safe_load(output)["dpo"]["loss"]["beta"] == 0.3


def test_nothing_of_the_examples_is_silent():
    assert len(EXAMPLES) > 15
    in_use = {"model_name_or_path": "m", "num_train_epochs": 2, "beta": 0.1}
    for kind, source in KINDS.items():
        examples = [keys for name, keys in EXAMPLES.items() if source_of(name) is source]
        assert examples, kind
        assert unlisted_keys(source, examples) == set()
        assert silent_keys(source, [*examples, in_use]) == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_load(name):
    source = source_of(name)
    assert loaded(source, migrate(source, EXAMPLES[name])).trainer.output_dir


def test_the_shared_defaults_are_those_of_transformers():
    theirs = {
        field.name: field.default
        for field in dataclasses.fields(transformers.TrainingArguments)
        if field.default is not dataclasses.MISSING
    }
    changed_by_trl = {"gradient_checkpointing", "bf16", "logging_steps"}
    ours = {k: v for k, v in trl_keys.DEFAULTS.items() if k in theirs and k not in changed_by_trl}
    assert len(ours) > 15
    assert ours == {key: theirs[key] for key in ours}


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_transformers_is_known(kind):
    theirs = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    known = set(KINDS[kind].known)
    assert len(theirs & known) > 50
    assert theirs - known == set()


def test_former_names():
    ours = config_of("grpo", "evaluation_strategy=steps", "eval_steps=64", "dataset_name=a/b",
                     "bf16=False", "torch_dtype=bfloat16")  # fmt: skip
    assert (ours.model.dtype, ours.eval_records) == ("bfloat16", "a/b@test")
    assert ours.trainer.eval_steps == 64
    notes = "".join(all_notes(migrated("sft", "max_seq_length=512", "neftune_noise_alpha=5")))
    assert "max_seq_length: 512: rows are not cut" in notes
    assert "neftune_noise_alpha: 5: not needed; no noise" in notes


def test_what_the_keys_mean():
    cispo = config_of("grpo", "loss_type=cispo", "epsilon_high=5").algorithm
    assert (cispo.loss.type, cispo.loss.clip_ratio_low) == ("cispo", 1.0)
    assert cispo.loss.clip_ratio_high == 4.0
    with pytest.raises(ValueError, match=r"epsilon_high=0\.2: for loss_type=cispo"):
        migrated("grpo", "loss_type=cispo")
    with pytest.raises(ValueError, match="4 completions, which num_generations=8 does not divide"):
        migrated("grpo", "per_device_train_batch_size=1")
    moving = config_of("grpo", "beta=0.1", "sync_ref_model=True", "num_iterations=2").algorithm
    assert moving.reference == MovingReference(sync_steps=256, mixup_alpha=0.6)
    other = migrated("grpo", "loss_type=vespo").notes
    assert any("'vespo': no such loss here" in note for note in other)
    tokens = config_of(
        "grpo", "top_entropy_quantile=0.2", "off_policy_mask_threshold=0.5"
    ).algorithm
    assert tokens.loss.top_entropy_quantile == 0.2
    assert tokens.rollout_correction.off_policy_mask_threshold == 0.5
    for overrides, said in (
        (["loss_type=grpo", "mask_truncated_completions=True"], "divides by the masked"),
        (["delta=1.2", "epsilon_high=0.3"], "where the advantage is negative, in TRL others too"),
        (["loss_type=luspo"], "averaged over the padded one"),
        (["importance_sampling_level=sequence", "top_entropy_quantile=0.2"], "all of their tokens"),
        (["entropy_coef=0.1", "top_entropy_quantile=0.2"], "in TRL of those that stay"),
    ):
        assert any(said in note for note in migrated("grpo", *overrides).notes), overrides
    assert not any("in TRL others" in note for note in migrated("grpo", "delta=1.3").notes)
    gdpo = config_of("grpo", "multi_objective_aggregation=normalize_then_sum", "run_name=r",
                     "report_to=wandb")  # fmt: skip
    assert (gdpo.algorithm.advantage.type, gdpo.trainer.tracking.run_name) == ("gdpo", "r")
    assert config_of("grpo").model.dtype == "bfloat16"  # bf16 is on by default
    assert config_of("grpo", "bf16=False").model.dtype == "float32"
    warm = config_of("sft", "warmup_steps=0.1", "lr_scheduler_type=cosine_with_min_lr",
                     "lr_scheduler_kwargs={min_lr_rate: 0.1}").optimizer  # fmt: skip
    assert (warm.scheduler.warmup_steps, warm.scheduler.type) == (0.1, "cosine")
    assert warm.min_lr == pytest.approx(2e-6)
    both = config_of("dpo", "loss_type=[ipo, sft]", "loss_weights=[1.0, 0.2]")
    assert (both.dpo.loss.type, both.dpo.loss.nll_coef) == ("ipo", 0.2)
    assert both.data.train_batch_size == 32
    assert config_of("sft", "full_determinism=True").full_determinism
    rloo = config_of("rloo", "reward_clip_range=[-1, 1]").algorithm
    assert (rloo.kl, rloo.reward_clip_range) == (KlReward(coef=0.05), (-1.0, 1.0))


# --- The losses and their gradients, against slow plain readings of TRL's trainers ---------------


def grpo_advantages(scale: str) -> list[float]:
    every = [reward for group in REWARDS for reward in group]
    advantages = []
    for group in REWARDS:
        for own in group:
            centred = own - statistics.mean(group)
            deviation = statistics.stdev(every if scale == "batch" else group)
            advantages.append(centred if scale in ("none", False) else centred / (deviation + 1e-4))
    return advantages


def grpo_loss(flat: dict[str, Any], x: Tensors) -> torch.Tensor:
    low = flat["epsilon"]
    high = low if flat.get("epsilon_high") is None else flat["epsilon_high"]
    kind, advantages = flat["loss_type"], grpo_advantages(flat["scale_rewards"])
    rows = [torch.zeros((), dtype=torch.float64) for _ in EACH]
    for row, t in tokens():
        a, new, old, ref = advantages[row], x.new[row, t], x.old[row, t], x.ref[row, t]
        ratio = (new - old).exp()
        if flat["importance_sampling_level"] == "sequence":
            ratio = (x.new[row] - x.old[row])[: EACH[row]].mean().exp()
        if kind == "cispo":
            loss = -ratio.clamp(max=high).detach() * a * new
        elif kind == "sapo":
            tau = flat["sapo_temperature_pos" if a > 0 else "sapo_temperature_neg"]
            loss = -a * torch.sigmoid(tau * (ratio - 1)) * 4 / tau
        else:
            bounded = ratio if flat.get("delta") is None else ratio.clamp(max=flat["delta"])
            loss = -torch.minimum(bounded * a, ratio.clamp(1 - low, 1 + high) * a)
        if flat["beta"]:
            kl = (ref - new).exp() - (ref - new) - 1
            loss = loss + flat["beta"] * kl * (ratio if flat["use_bias_correction_kl"] else 1)
        rows[row] = rows[row] + loss - flat["entropy_coef"] * x.entropy[row, t]
    if kind in ("grpo", "sapo"):
        return sum(r / n for r, n in zip(rows, EACH, strict=True)) / len(EACH)
    if kind == "dr_grpo":
        return sum(rows) / len(EACH) / LONGEST
    return sum(rows) / (len(EACH) if kind == "luspo" else sum(EACH))


GRPO = {
    "the defaults": [],
    "dapo with a KL": ["beta=0.3"],
    "dapo, its KL uncorrected": ["beta=0.3", "use_bias_correction_kl=False", "epsilon_high=0.28"],
    "grpo": ["loss_type=grpo", "scale_rewards=False"],
    "grpo by the batch": ["loss_type=grpo", "scale_rewards=batch", "beta=0.04"],
    "dr_grpo": ["loss_type=dr_grpo", "scale_rewards=none"],
    "bnpo": ["loss_type=bnpo", "delta=1.3"],
    "luspo": ["loss_type=luspo", "importance_sampling_level=sequence", "beta=0.1"],
    "cispo": ["loss_type=cispo", "epsilon_high=1.1"],
    "sapo": ["loss_type=sapo", "sapo_temperature_pos=1.2", "beta=0.2"],
    "gspo": ["loss_type=grpo", "importance_sampling_level=sequence", "epsilon=0.05"],
    "entropy": ["entropy_coef=0.1"],
}


@pytest.mark.parametrize("name", [*GRPO, *(n for n in EXAMPLES if "grpo" in n or "gspo" in n)])
def test_the_loss_of_grpo_and_its_gradient_are_theirs(name):
    source = KINDS["trl-grpo"]
    given = EXAMPLES.get(name) or with_arguments({"model_name_or_path": "m"}, GRPO[name], source)
    x = tensors()
    section = migrate(source, given).tree["algorithm"]
    check_equal(our_loss(section, x), grpo_loss({**source.defaults, **given}, x), x.new)


@pytest.mark.parametrize("beta", [0.0, 0.05, 0.5])
def test_the_loss_of_rloo_and_its_gradient_are_theirs(beta):
    x = tensors(1)
    section = migrated("rloo", f"beta={beta}", "epsilon=0.3", "reward_clip_range=[0, 0.6]").tree
    scores = [[min(max(r, 0.0), 0.6) for r in group] for group in REWARDS]
    theirs = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(EACH):
        kl = float((x.old[row] - x.ref[row])[:length].sum())
        scores[row // 3][row % 3] -= beta * kl
    for row, length in enumerate(EACH):
        group, own = scores[row // 3], scores[row // 3][row % 3]
        a = own - (sum(group) - own) / (len(group) - 1)
        ratio = (x.new[row] - x.old[row])[:length].sum().exp()
        theirs = theirs - torch.minimum(ratio * a, ratio.clamp(0.7, 1.3) * a) / len(EACH)
    check_equal(our_loss(section["algorithm"], x), theirs, x.new)


def dpo_loss(flat: dict[str, Any], kind: str, pairs: PairScores) -> torch.Tensor:
    ratios = pairs.logprobs - pairs.ref_logprobs
    beta, smoothing, total = flat["beta"], flat["label_smoothing"], 0.0
    for pair in range(len(ratios)):
        chosen, rejected = ratios[pair]
        if kind in ("ipo", "sigmoid_norm"):
            chosen, rejected = chosen / pairs.lengths[pair, 0], rejected / pairs.lengths[pair, 1]
        delta = chosen - rejected
        if kind == "ipo":
            total = total + (delta - 1 / (2 * beta)) ** 2
        elif kind == "robust":
            right, wrong = -logsigmoid(beta * delta), -logsigmoid(-beta * delta)
            total = total + ((1 - smoothing) * right - smoothing * wrong) / (1 - 2 * smoothing)
        else:
            total = total - logsigmoid(beta * delta)
    return total / len(ratios)


@pytest.mark.parametrize("kind", trl_keys.DPO_LOSSES)
def test_the_losses_on_pairs_and_their_gradients_are_theirs(kind):
    migration = migrated("dpo", f"loss_type={kind}", "beta=0.2", "label_smoothing=0.1")
    config = DpoConfig(**migration.tree["dpo"])
    generator = torch.Generator().manual_seed(3)
    new, ref = (torch.randn(4, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    new.requires_grad_()
    pairs = PairScores(new, ref, torch.tensor([[3, 5], [2, 9], [4, 4], [7, 1]]))
    ours = loss_on_pairs(config.loss)(pairs).loss.mean()
    flat = {**KINDS["trl-dpo"].defaults, "beta": 0.2, "label_smoothing": 0.1}
    check_equal(ours, dpo_loss(flat, kind, pairs), new)
