"""verl's own examples, carried over with verl's own defaults; what cannot be is said."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mmr1.config.file import config_from, load_config
from mmr1.config.kl import KlLoss
from mmr1.config.model import StoredLoraConfig
from mmr1_contrib.migrate.reading import with_arguments
from mmr1_contrib.migrate.source import flattened, migrate
from mmr1_contrib.migrate.verl import VERL
from mmr1_contrib.migrate.verl_keys import ACTOR, DEFAULTS, ROLLOUT
from tests.contrib.migrate.checks import loaded, silent_keys, unlisted_keys
from tests.contrib.migrate.losses import (
    EACH,
    LENGTHS,
    LONGEST,
    REWARDS,
    Tensors,
    check_equal,
    our_loss,
    tensors,
    tokens,
)

EXAMPLES: dict[str, dict[str, Any]] = {
    name: flattened(keys, VERL.whole)
    for name, keys in yaml.safe_load(
        (Path(__file__).parent / "examples/verl.yaml").read_text()
    ).items()
}

SCRIPT = r"""
set -x
ENGINE=${1:-vllm}
n=$((2 * 4))
data="data.train_files=$HOME/geo3k/train.parquet data.val_files=$HOME/geo3k/test.parquet"
ACTOR=(
    actor_rollout_ref.actor.optim.lr=3e-6  # the rate
    actor_rollout_ref.actor.use_kl_loss=True
)
python3 -m verl.trainer.main_ppo $data \
    algorithm.adv_estimator=grpo \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.max_model_len=99 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct \
    "${ACTOR[@]}" \
    actor_rollout_ref.rollout.name=$ENGINE \
    actor_rollout_ref.rollout.n=$n \
    actor_rollout_ref.actor.clip_ratio_hgih=0.3 \
    trainer.logger='["console","wandb"]' $@
"""


def migrated(*overrides: str, example: str | None = None):
    base = EXAMPLES[example] if example else {f"{ROLLOUT}.n": 4, "algorithm.adv_estimator": "grpo"}
    return migrate(VERL, with_arguments(base, overrides, VERL))


def section(*overrides: str, example: str | None = None) -> Any:
    return loaded(VERL, migrated(*overrides, example=example))


def test_a_script_as_it_stands(tmp_path: Path, mmr1, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run.sh").write_text(SCRIPT)
    code, output, message = mmr1("migrate", tmp_path / "run.sh", "trainer.total_epochs=3")
    assert code == 0, message
    for told in (
        "read as verl", "HOME is not set in the script", "(did you mean 'actor_rollout_ref.actor.",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.max_model_len: 99: not needed",
    ):  # fmt: skip
        assert told in output
    (tmp_path / "ours.yaml").write_text(output)
    monkeypatch.setenv("HOME", "/home/me")
    ours = load_config(tmp_path / "ours.yaml")
    assert (ours.data.train, ours.eval_records) == (
        "/home/me/geo3k/train.parquet",
        "/home/me/geo3k/test.parquet",
    )
    assert (ours.rollout.n, ours.rollout.engine.type, ours.optimizer.lr) == (8, "vllm", 3e-6)
    assert (ours.data.train_batch_size, ours.mini_batches) == (1024, 4)  # verl's defaults
    algorithm = ours.algorithm
    assert algorithm.kl == KlLoss(coef=1e-3, estimator="k3")
    assert (algorithm.loss.clip_ratio_dual, algorithm.loss.agg_mode) == (3.0, "token-mean")
    assert (ours.trainer.total_epochs, ours.trainer.trackers) == (3, ("wandb",))
    assert (ours.eval.n, ours.trainer.validates_before) == (0, True)


def test_the_whole_yaml_and_its_interpolations(tmp_path: Path, mmr1):
    (tmp_path / "ppo_trainer.yaml").write_text("""
defaults: [_self_]
data: {max_response_length: 700, train_batch_size: 64}
actor_rollout_ref:
  model: {_target_: verl.X, path: m}
  actor: {ppo_mini_batch_size: 32, optim: {_target_: verl.Y, lr: 1e-5}}
  rollout: {name: vllm, n: 2, response_length: "${oc.select:data.max_response_length,512}"}
critic: {ppo_mini_batch_size: "${oc.select:actor_rollout_ref.actor.ppo_mini_batch_size,256}"}
""")
    code, output, message = mmr1("migrate", tmp_path / "ppo_trainer.yaml", "--from", "verl")
    assert code == 0, message
    ours = config_from(yaml.safe_load(output))
    assert (ours.rollout.max_response_length, ours.optimizer.lr) == (700, 1e-5)
    assert ours.algorithm.name == "ppo"  # adv_estimator is gae unless it is set
    critic = ours.algorithm.critic
    assert (critic.cliprange_value, critic.lr, ours.mini_batches) == (0.5, 1e-5, 2)
    assert "_target_" not in output
    code, _, message = mmr1("migrate", tmp_path / "ppo_trainer.yaml", "--from", "easyr1")
    assert code == 2
    assert "not keys of EasyR1" in message
    code, _, message = mmr1("migrate", tmp_path / "ppo_trainer.yaml", "--from", "varl")
    assert "one of easyr1, verl" in message


FULLY_ASYNC = """
python -m recipe.fully_async_policy.fully_async_main --config-name=fully_async_ppo_trainer.yaml \\
    data.train_files=a.parquet data.val_files=b.parquet data.train_batch_size=0 \\
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \\
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 algorithm.adv_estimator=grpo \\
    rollout.total_rollout_steps=5000 rollout.total_epochs=2 rollout.test_freq=6 rollout.nnodes=1 \\
    async_training.require_batches=2 async_training.trigger_parameter_sync_step=3 \\
    async_training.staleness_threshold=0.5 async_training.partial_rollout=False"""


def test_what_fully_async_policy_has_for_batches_and_steps(tmp_path: Path, mmr1):
    """The weights reach its engine after 3 x 2 mini-batches of 8 prompts, and its schedule moves
    3 times in between."""
    (tmp_path / "run.sh").write_text(FULLY_ASYNC)
    code, output, message = mmr1("migrate", tmp_path / "run.sh")
    assert code == 0, message
    ours = config_from(yaml.safe_load(output))
    assert (ours.data.train_batch_size, ours.mini_batches) == (48, 6)
    assert (ours.trainer.max_steps, ours.trainer.validation.steps) == (104, 6)
    assert ours.optimizer.scheduler.warmup_steps == 20
    assert ours.rollout.max_off_policy_steps == 1
    assert ours.rollout.queue.at_new_weights == "restart"
    assert ours.algorithm.rollout_correction.importance_sampling.level == "token"
    assert "async_training.use_rollout_log_probs: True: old log-probs are" in output
    own = {"async_training.compute_prox_log_prob": True, "async_training.staleness_threshold": 0}
    synchronous = loaded(VERL, migrated(*(f"{k}={v}" for k, v in own.items())))
    assert not synchronous.rollout.streams
    assert synchronous.algorithm.rollout_correction.importance_sampling is None


def test_another_program_of_verl_is_named(tmp_path: Path, mmr1):
    (tmp_path / "run.sh").write_text("python3 -m recipe.spin.main_spin data.train_batch_size=8")
    code, _, message = mmr1("migrate", tmp_path / "run.sh")
    assert code == 2
    assert "started are recipe.spin.main_spin" in message


@pytest.mark.parametrize(
    ("kind", "lowest", "level"),
    [("geometric", 0.999, "geometric"), ("token", None, "token"), ("sequence", 0.3, None)],
)
def test_rejection_as_verl_0_6_spells_it(kind, lowest, level):
    given = [f"algorithm.rollout_correction.{k}" for k in (f"rollout_rs={kind}",
             "rollout_rs_threshold=1.001", "rollout_token_veto_threshold=1e-4")]  # fmt: skip
    if lowest is not None:
        given.append(f"algorithm.rollout_correction.rollout_rs_threshold_lower={lowest}")
    result = migrated(*given)
    rejection = loaded(VERL, result).algorithm.rollout_correction.rejection_sampling
    assert (rejection and (rejection.level, rejection.threshold)) == (level and (level, 1.001))
    assert any("rollout_token_veto_threshold" in note for note in result.notes)


def test_nothing_of_the_examples_is_silent():
    assert len(EXAMPLES) > 30
    in_use = {
        "algorithm.adv_estimator": "rloo", f"{ROLLOUT}.n": 4, f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_type": "mse",
    }  # fmt: skip
    rewarded = {
        "algorithm.adv_estimator": "rloo", f"{ROLLOUT}.n": 4, "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.kl_coef": 0.3,
    }  # fmt: skip
    assert silent_keys(VERL, [*EXAMPLES.values(), in_use, rewarded]) == set()
    assert unlisted_keys(VERL, EXAMPLES.values()) == set()


def test_what_the_scripts_set():
    dapo = section(example="gmpo_trainer/test_dapo_7b_math.sh@0.8")
    assert (dapo.optimizer.scheduler.warmup_steps, dapo.trainer.max_steps) == (
        160,
        200,
    )  # 16 updates each
    overlong = dapo.rewards["overlong"]
    assert (overlong.max_length, overlong.buffer) == (8192, 4096)
    frozen = section(example="grpo_trainer/run_qwen2_5_vl-7b_freeze_vision.sh@0.8")
    assert frozen.model.freeze_vision_tower
    lora = section(example="grpo_trainer/run_qwen2_5_vl-7b_lora.sh@0.8").model
    assert (lora.lora.rank, lora.lora.alpha, lora.freeze_vision_tower) == (64, 32, True)
    video = section(example="grpo_trainer/run_qwen3_5_2b_video_fsdp.sh")
    assert video.rewards["verl"].type.endswith("compute_score")
    teacher = section(example="on_policy_distillation_trainer/run_qwen3_vl_8b_fsdp.sh").algorithm
    assert teacher.name == "on_policy_distillation"
    assert teacher.advantage.teacher.path == "Qwen/Qwen3-VL-32B-Instruct"
    with pytest.raises(ValueError, match=r"teacher_model.model_path is not given; add it to the"):
        migrated("distillation.enabled=True")
    corrected = section(
        "algorithm.rollout_correction.rollout_is=sequence",
        "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
        "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0",
    ).algorithm
    weights = corrected.importance_sampling
    assert (weights.level, weights.threshold) == ("sequence", 2.0)
    rejection = corrected.rollout_correction.rejection_sampling
    assert (rejection.level, rejection.threshold) == ("geometric", 2.0)
    filtered = section("algorithm.filter_groups.enable=True", "data.gen_batch_size=3072")
    assert filtered.algorithm.resamples.gen_batch_size == 3072
    assert section(f"{ROLLOUT}.val_kwargs.do_sample=True").eval.n == 0  # at temperature 0
    sampled = section(
        *(f"{ROLLOUT}.val_kwargs.{key}" for key in ("do_sample=True", "temperature=1.0",
          "top_p=0.7", "top_k=20", "n=30")), f"{ROLLOUT}.top_p=0.9",
    ).eval.sampled  # fmt: skip
    assert (sampled.n, sampled.temperature, sampled.top_p, sampled.top_k) == (30, 1.0, 0.7, 20)
    named = section(example="grpo_trainer/run_qwen2_5_vl_7b_fsdp.sh").trainer
    assert named.tracking.run_name == "qwen2_5_vl_7b_vllm_fsdp"
    megatron = section("actor_rollout_ref.model.lora.rank=8").model.lora
    assert (megatron.rank, megatron.alpha, megatron.dropout) == (8, 32, 0)
    both = section(*(f"actor_rollout_ref.model.lora.{k}" for k in ("rank=8", "alpha=4",
                     "dropout=0.1")), "actor_rollout_ref.model.lora_rank=2").model.lora  # fmt: skip
    assert (both.rank, both.alpha, both.dropout) == (8, 4, 0.1)
    adapters = section("actor_rollout_ref.model.lora_adapter_path=a/b").model.lora
    assert adapters == StoredLoraConfig(path="a/b")
    profiled = section("global_profiler.tool=torch", "global_profiler.steps=[2, 4]").trainer
    assert profiled.profile_steps == (2, 4)
    gdpo = migrated("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a, b]")
    assert gdpo.tree["algorithm"]["advantage"]["type"] == "gdpo"
    assert any("gdpo_reward_keys" in note for note in gdpo.notes)
    loss_mode = f"{ACTOR}.policy_loss.loss_mode=clip_cov"
    clip_cov = section(loss_mode).algorithm
    assert (clip_cov.name, clip_cov.loss.ratio, clip_cov.loss.clip_ratio_high) == (
        "clip_cov", 2e-4, 0.2,
    )  # fmt: skip
    bound = migrated(loss_mode, f"{ACTOR}.policy_loss.clip_cov_ub=9").notes
    assert any("clip_cov_ub: 9: it is 5" in note for note in bound)
    plain = section(f"{ROLLOUT}.name=hf").rollout
    assert plain.engine.type == "hf"
    spoken = section("+data.apply_chat_template_kwargs.enable_thinking=False", "+data"
                     ".apply_chat_template_kwargs.tone=dry").data  # fmt: skip
    assert spoken.chat_template_kwargs == {"enable_thinking": False, "tone": "dry"}
    both = migrated(f"{ACTOR}.use_kl_loss=True", "algorithm.use_kl_in_reward=True").notes
    assert any("not in both" in note for note in both)
    unread = migrated(f"{ACTOR}.clip_ratio=0.3").notes  # as in verl: the other two have values
    assert any("verl does not read it" in note for note in unread)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_load(name):
    assert section(example=name).trainer.output_dir


def test_numbers_and_switches_must_be_known():
    with pytest.raises(
        ValueError, match=r"data.train_batch_size=\$\{oc.env:BSZ\}: this must be a n"
    ):
        migrated("data.train_batch_size=${oc.env:BSZ}")
    with pytest.raises(ValueError, match=r"use_kl_loss=\$\{oc.env:KL\}: this must be true or"):
        migrated(f"{ACTOR}.use_kl_loss=${{oc.env:KL}}")
    with pytest.raises(ValueError, match=r"Not known: trainer.max_actor_ckpt_to_keep=\$\{oc.env:N"):
        migrated("trainer.max_actor_ckpt_to_keep=${oc.env:N}", "trainer.save_freq=5")


# --- The loss and its gradient, against a slow plain reading of verl's core_algos ----------------


def their_advantages(flat: dict[str, Any], scores: list[list[float]]) -> list[float]:
    estimator = flat["algorithm.adv_estimator"]
    advantages = []
    for group, lengths in zip(scores, LENGTHS, strict=True):
        mean, deviation = statistics.mean(group), statistics.stdev(group) + 1e-6
        for own in group:
            match estimator:
                case "grpo" if flat["algorithm.norm_adv_by_std_in_grpo"]:
                    advantages.append((own - mean) / deviation)
                case "grpo" | "reinforce_plus_plus_baseline":
                    advantages.append(own - mean)
                case "rloo":
                    advantages.append((own - mean) * len(group) / (len(group) - 1))
                case "opo":
                    weighted = sum(n * r for n, r in zip(lengths, group, strict=True))
                    advantages.append(own - weighted / sum(lengths))
                case "grpo_passk":
                    best, second = sorted(group, reverse=True)[:2]
                    advantages.append((best - second) / deviation if own == best else 0.0)
                case _:
                    raise AssertionError(estimator)
    if estimator != "reinforce_plus_plus_baseline":
        return advantages
    every = [a for a, length in zip(advantages, EACH, strict=True) for _ in range(length)]
    noted = math.sqrt(len(every) / (len(every) - 1))  # verl has the deviation of the sample
    mean, deviation = statistics.mean(every), statistics.stdev(every)
    return [(a - mean) / deviation * noted for a in advantages]


def their_kl(kind: str, policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    d = policy - reference
    values = {"kl": d, "k1": d, "abs": d.abs(), "mse": d * d / 2, "k2": d * d / 2}
    values["low_var_kl"] = values["k3"] = ((-d).exp() + d - 1).clamp(max=10)
    if not kind.endswith("+"):
        return values[kind]
    return values["k2"] - values["k2"].detach() + values[kind[:-1]].detach()


def their_token(flat: dict[str, Any], x: Tensors, row: int, t: int, a: float) -> torch.Tensor:
    low, high = flat[f"{ACTOR}.clip_ratio_low"], flat[f"{ACTOR}.clip_ratio_high"]
    new, ratio = x.new[row, t], (x.new[row, t] - x.old[row, t]).exp()
    kind = flat[f"{ACTOR}.policy_loss.loss_mode"]
    if kind == "gspo":
        mean = (x.new[row] - x.old[row])[: EACH[row]].mean()
        ratio = (mean.detach() + new - new.detach()).exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    match kind:
        case "cispo":
            return -clipped.detach() * a * new
        case "sapo":
            tau = flat[f"{ACTOR}.tau_pos" if a > 0 else f"{ACTOR}.tau_neg"]
            return -a * torch.sigmoid(tau * (ratio - 1)) * 4 / tau
        case "gpg":
            return -a * new
        case "kl_cov":
            return -a * ratio
    loss = torch.maximum(-a * ratio, -a * clipped)
    if kind == "vanilla" and a < 0:
        loss = torch.minimum(loss, torch.full_like(loss, -a * flat[f"{ACTOR}.clip_ratio_c"]))
    return loss


def their_covariant(
    flat: dict[str, Any], x: Tensors, advantages: list[float]
) -> list[tuple[int, int]]:
    """The tokens of the highest covariance of advantage and log-prob."""
    places = list(tokens())
    mean_a = statistics.mean(advantages[row] for row, _ in places)
    mean_p = statistics.mean(float(x.old[row, t]) for row, t in places)

    def covariance(place: tuple[int, int]) -> float:
        row, t = place
        return (advantages[row] - mean_a) * (float(x.old[row, t]) - mean_p)

    count = max(1, int(len(places) * flat[f"{ACTOR}.policy_loss.kl_cov_ratio"]))
    return sorted(places, key=covariance)[-count:]


def their_loss(flat: dict[str, Any], x: Tensors) -> torch.Tensor:
    scores = [list(row) for row in REWARDS]
    if flat["algorithm.use_kl_in_reward"]:
        for row, t in tokens():
            kl = their_kl(flat["algorithm.kl_penalty"], x.old[row, t], x.ref[row, t])
            scores[row // 3][row % 3] -= flat["algorithm.kl_ctrl.kl_coef"] * float(kl)
    advantages = their_advantages(flat, scores)
    losses, penalties = {}, {}
    for row, t in tokens():
        losses[row, t] = their_token(flat, x, row, t, advantages[row])
        penalties[row, t] = -flat[f"{ACTOR}.entropy_coeff"] * x.entropy[row, t]
        if flat[f"{ACTOR}.use_kl_loss"]:
            kl = their_kl(flat[f"{ACTOR}.kl_loss_type"], x.new[row, t], x.ref[row, t])
            penalties[row, t] = penalties[row, t] + flat[f"{ACTOR}.kl_loss_coef"] * kl
    if flat[f"{ACTOR}.policy_loss.loss_mode"] == "kl_cov":
        for row, t in their_covariant(flat, x, advantages):  # by the old log-probs, as noted
            log_ratio = x.new[row, t] - x.old[row, t]
            losses[row, t] = losses[row, t] + (
                flat[f"{ACTOR}.policy_loss.ppo_kl_coef"] * log_ratio.abs()
            )
    mode = flat[f"{ACTOR}.loss_agg_mode"]
    if flat[f"{ACTOR}.policy_loss.loss_mode"] in ("gspo", "sapo"):  # they do not read it
        of_policy = "seq-mean-token-mean"
    else:
        of_policy = mode
    return aggregated(losses, of_policy) + aggregated(penalties, mode)


def aggregated(losses: dict[tuple[int, int], torch.Tensor], mode: str) -> torch.Tensor:
    rows = [sum(losses[row, t] for t in range(length)) for row, length in enumerate(EACH)]
    match mode:
        case "token-mean":
            return sum(rows) / sum(EACH)
        case "seq-mean-token-mean":
            return sum(r / n for r, n in zip(rows, EACH, strict=True)) / len(EACH)
        case "token-sum":
            return sum(rows)
        case "seq-mean-token-sum":
            return sum(rows) / len(EACH)
    return sum(rows) / len(EACH) / LONGEST


LOSSES: dict[str, tuple[str | None, list[str]]] = {
    "grpo, Qwen2.5-VL": ("grpo_trainer/run_qwen2_5_vl_7b_fsdp.sh", []),
    "grpo, Qwen3-VL": ("grpo_trainer/run_qwen3_vl_8b_fsdp.sh", []),
    "dapo": ("sglang_multiturn/run_qwen3_4b_dapo_multiturn.sh@0.8", []),
    "gspo": ("gspo_trainer/run_qwen3_8b_fsdp.sh", []),
    "gspo, sequences": ("gspo_trainer/test_gspo_3b_math.sh@0.8", []),
    "gspo by default": (None, [f"{ACTOR}.policy_loss.loss_mode=gspo"]),
    "gspo, its average unread": (
        None,
        [f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"],
    ),
    "token-sum": (None, [f"{ACTOR}.loss_agg_mode=token-sum", f"{ACTOR}.entropy_coeff=0.01"]),
    "cispo": ("cispo_trainer/run_qwen3_8b_fsdp.sh", []),
    "sapo": ("sapo_trainer/run_qwen3_8b_fsdp.sh", []),
    "rloo": ("rloo_trainer/run_qwen3_8b_fsdp.sh", []),
    "LoRA": ("tuning/lora/run_qwen2_5_vl_7b_fsdp.sh", []),
    "video": ("grpo_trainer/run_qwen3_5_2b_video_fsdp.sh", []),
    "baseline": ("reinforce_plus_plus_trainer/run_qwen2-7b_math_rf_baseline.sh@0.8", []),
    "baseline, cispo": (
        None,
        [
            "algorithm.adv_estimator=reinforce_plus_plus_baseline",
            f"{ACTOR}.policy_loss.loss_mode=cispo",
            f"{ACTOR}.clip_ratio_high=0.1",
        ],
    ),
    "baseline, gspo": (
        None,
        [
            "algorithm.adv_estimator=reinforce_plus_plus_baseline",
            f"{ACTOR}.policy_loss.loss_mode=gspo",
        ],
    ),
    "rloo, plain": (None, ["algorithm.adv_estimator=rloo", f"{ACTOR}.policy_loss.loss_mode=gpg"]),
    "opo": (None, ["algorithm.adv_estimator=opo", f"{ACTOR}.entropy_coeff=0.01"]),
    "pass@k": (None, ["algorithm.adv_estimator=grpo_passk", f"{ACTOR}.clip_ratio_c=1.2"]),
    "Dr.GRPO": (
        None,
        [
            "algorithm.norm_adv_by_std_in_grpo=False",
            f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
        ],
    ),
    "sums": (None, [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum", f"{ACTOR}.clip_ratio_high=0.28"]),
    "in the reward": (
        None,
        [
            "algorithm.use_kl_in_reward=True",
            "algorithm.kl_ctrl.kl_coef=0.2",
            "algorithm.kl_penalty=low_var_kl",
        ],
    ),
    "straight through": (
        None,
        [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=k3+", f"{ACTOR}.kl_loss_coef=0.3"],
    ),
    "absolute": (
        None,
        [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=abs", f"{ACTOR}.kl_loss_coef=0.3"],
    ),
    "KL-Cov": (
        None,
        [
            f"{ACTOR}.policy_loss.loss_mode=kl_cov",
            f"{ACTOR}.policy_loss.kl_cov_ratio=0.2",
            f"{ACTOR}.policy_loss.ppo_kl_coef=0.7",
        ],
    ),
    "null": (None, [f"{ACTOR}.clip_ratio=0.1", f"{ACTOR}.clip_ratio_low=null"]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_and_its_gradient_are_theirs(name):
    example, overrides = LOSSES[name]
    migration = migrated(*overrides, example=example)
    given = with_arguments(EXAMPLES[example] if example else {}, overrides, VERL)
    given = {VERL.older.get(key, key): value for key, value in given.items()}
    flat = {**DEFAULTS, "algorithm.adv_estimator": "grpo", **given}
    if flat[f"{ACTOR}.clip_ratio_low"] is None:
        flat[f"{ACTOR}.clip_ratio_low"] = flat[f"{ACTOR}.clip_ratio"]
    x = tensors()
    theirs = their_loss(flat, x)
    ours = our_loss(migration.tree["algorithm"], x)
    check_equal(ours, theirs, x.new, value=name != "straight through")
