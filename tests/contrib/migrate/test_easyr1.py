"""EasyR1's own examples, carried over with EasyR1's own defaults; what cannot be is said."""

from __future__ import annotations

import math
import re
import statistics
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml

from mmr1.algorithms import loss
from mmr1.config import Config
from mmr1.config.file import dump_yaml, load_config
from mmr1.config.kl import KlLoss, KlReward
from mmr1_contrib.migrate.command import migrate_file
from mmr1_contrib.migrate.easyr1 import EASYR1
from mmr1_contrib.migrate.easyr1_keys import DEFAULTS
from mmr1_contrib.migrate.reading import with_arguments
from mmr1_contrib.migrate.source import migrate
from tests.contrib.migrate.checks import loaded, silent_keys, unlisted_keys
from tests.contrib.migrate.losses import EACH, REWARDS, check_equal, our_loss, tensors, tokens
from tests.paths import REPOSITORY

# The keys of EasyR1's examples/config.yaml.
THEIRS = """
data:
  train_files: hiyouga/math12k@train
  val_files: hiyouga/math12k@test
  prompt_key: problem
  answer_key: answer
  image_key: images
  video_key: videos
  image_dir: null
  video_fps: 2.0
  max_prompt_length: 2048
  max_response_length: 2048
  rollout_batch_size: 512
  mini_rollout_batch_size: null
  val_batch_size: 1024
  format_prompt: ./examples/format_prompt/math.jinja
  override_chat_template: null
  shuffle: true
  seed: 1
  min_pixels: 262144
  max_pixels: 4194304
  filter_overlong_prompts: true
algorithm:
  {adv_estimator: grpo, disable_kl: false, use_kl_loss: true, kl_penalty: low_var_kl,
   kl_coef: 1.0e-2, online_filtering: false, filter_key: overall, filter_low: 0.01,
   filter_high: 0.99}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
    micro_batch_size_per_device_for_experience: 2
    max_grad_norm: 1.0
    padding_free: true
    dynamic_batching: true
    ulysses_size: 1
    model:
      model_path: Qwen/Qwen2.5-7B-Instruct
      enable_gradient_checkpointing: true
      trust_remote_code: false
      freeze_vision_tower: false
      lora: {rank: 0, alpha: 64, target_modules: all-linear, exclude_modules: .*visual.*}
    optim: {lr: 1.0e-6, weight_decay: 1.0e-2, strategy: adamw, lr_warmup_ratio: 0.0}
    fsdp: {enable_full_shard: true, enable_cpu_offload: false, enable_rank0_init: true}
    offload: {offload_params: true, offload_optimizer: true}
  rollout:
    n: 5
    temperature: 1.0
    top_p: 1.0
    limit_images: 0
    gpu_memory_utilization: 0.6
    enforce_eager: false
    enable_chunked_prefill: false
    tensor_parallel_size: 2
    disable_tqdm: false
    val_override_config: {temperature: 0.6, top_p: 0.95, n: 1}
  ref:
    fsdp: {enable_full_shard: true, enable_cpu_offload: true, enable_rank0_init: true}
    offload: {offload_params: false}
  reward: {reward_function: "./examples/reward_function/math.py:compute_score"}
trainer:
  total_epochs: 15
  max_steps: null
  project_name: easy_r1
  experiment_name: qwen2_5_7b_math_grpo
  logger: ["file", "wandb"]
  nnodes: 1
  n_gpus_per_node: 8
  max_try_make_batch: 20
  val_freq: 5
  val_before_train: true
  val_only: false
  val_generations_to_log: 3
  save_freq: 5
  save_limit: 3
  save_model_only: false
  save_checkpoint_path: null
  load_checkpoint_path: null
  find_last_checkpoint: true
"""

# What the scripts of EasyR1's examples/ override, but for paths and names.
SCRIPTS: dict[str, list[str]] = {
    "qwen2_5_7b_math_grpo": [],
    "qwen2_5_vl_7b_geo3k_cispo": [
        *("worker.actor.loss_type=cispo", "worker.actor.clip_ratio_low=0"),
        "worker.actor.clip_ratio_high=4",
    ],
    "qwen2_5_vl_7b_geo3k_dapo": [
        *("data.mini_rollout_batch_size=128", "worker.actor.clip_ratio_low=0.2"),
        *("worker.actor.clip_ratio_high=0.28", "algorithm.disable_kl=True"),
        "algorithm.online_filtering=True",
    ],
    "qwen2_5_vl_7b_geo3k_gspo": [
        *("worker.actor.loss_type=gspo_token", "worker.actor.loss_avg_mode=seq"),
        *("worker.actor.clip_ratio_low=3e-4", "worker.actor.clip_ratio_high=4e-4"),
        "algorithm.disable_kl=True",
    ],
    "qwen2_5_vl_7b_geo3k_reinforce": [
        *("algorithm.adv_estimator=reinforce_plus_plus", "algorithm.use_kl_loss=false"),
        *("algorithm.kl_penalty=kl", "algorithm.kl_coef=1.0e-3"),
    ],
    "qwen2_5_vl_7b_geo3k_sapo": ["worker.actor.loss_type=sapo", "algorithm.disable_kl=True"],
    "qwen2_5_vl_7b_geo3k_swanlab": ["trainer.logger=['console','swanlab']"],
    "qwen2_5_vl_7b_multi_image": ["data.rollout_batch_size=256", "worker.rollout.limit_images=2"],
    "qwen2_5_vl_32b_geo3k_grpo": [
        *("worker.actor.fsdp.torch_dtype=bf16", "worker.actor.optim.strategy=adamw_bf16"),
        "worker.rollout.tensor_parallel_size=8",
    ],
    "qwen2_5_vl_3b_android_gui_grpo": [
        *("data.rollout_batch_size=32", "worker.actor.global_batch_size=32", "data.seed=42"),
        *("algorithm.kl_coef=4.0e-2", "worker.actor.max_grad_norm=0.1", "worker.rollout.n=8"),
        *("worker.actor.optim.lr=1.0e-5", "worker.actor.optim.lr_warmup_ratio=0.05"),
        *("worker.rollout.temperature=0.9", "trainer.total_epochs=3", "trainer.val_freq=2"),
    ],
    "qwen3_14b_dapo17k_dapo": [
        *("data.max_response_length=20480", "worker.actor.optim.lr_warmup_steps=10"),
        *("worker.actor.global_batch_size=32", "worker.actor.clip_ratio_high=0.28"),
        *("worker.actor.clip_ratio_dual=10.0", "worker.rollout.n=16", "algorithm.disable_kl=True"),
        *("algorithm.online_filtering=True", "algorithm.filter_key=accuracy_normalized"),
        'worker.rollout.val_override_config={"n":16,"temperature":1.0,"top_p":0.7}',
        'worker.reward.reward_function_kwargs={"overlong_penalty_factor":1.0}',
        *("trainer.max_try_make_batch=10", "worker.actor.ulysses_size=8"),
    ],
    "qwen3_4b_math_grpo_lora": [
        *("worker.actor.model.lora.rank=64", "worker.actor.model.lora.alpha=64"),
        "worker.actor.optim.lr=1e-5",
    ],
}


def theirs_with(*overrides: str) -> dict:
    return with_arguments(yaml.safe_load(THEIRS), overrides, EASYR1)


def migrated(*overrides: str):
    return migrate(EASYR1, theirs_with(*overrides))


def config_of(*overrides: str) -> Config:
    return loaded(EASYR1, migrated(*overrides))


def test_the_example(tmp_path: Path, mmr1):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    code, output, message = mmr1("migrate", tmp_path / "theirs.yaml")
    assert code == 0, message
    (tmp_path / "ours.yaml").write_text(output)
    ours = load_config(tmp_path / "ours.yaml")
    assert ours.data.train == "hiyouga/math12k@train"
    assert (ours.rollout.max_prompt_length, ours.rollout.max_response_length) == (2048, 2048)
    assert (ours.data.train_batch_size, ours.rollout.n) == (512, 5)
    images = ours.data.image
    assert (images.min_pixels, images.max_pixels, images.resize) == (262144, 4194304, "easyr1")
    algorithm = ours.algorithm
    assert (algorithm.name, algorithm.kl) == ("grpo", KlLoss(estimator="k3", coef=0.01))
    # EasyR1's defaults, which its YAML does not name.
    loss = algorithm.loss
    assert (loss.clip_ratio_low, loss.clip_ratio_high) == (0.2, 0.3)
    assert (loss.clip_ratio_dual, loss.agg_mode) == (3.0, "token-mean")
    assert (algorithm.ppo_mini_batch_size, ours.mini_batches) == (128, 4)
    schedule = ours.optimizer.scheduler
    assert (schedule.warmup_steps, schedule.type) == (0, "constant")
    assert (ours.trainer.total_epochs, ours.trainer.eval_steps) == (15, 5)
    assert ours.trainer.validates_before
    assert ours.eval_records == "hiyouga/math12k@test"
    assert (ours.eval.n, ours.eval.sampled.temperature) == (1, 0.6)
    assert ours.trainer.checkpoints.save_steps == 5
    assert ours.trainer.checkpoints.save_total_limit == 3
    assert ours.trainer.output_dir == "runs/qwen2_5_7b_math_grpo"
    tracking = ours.trainer.tracking
    assert (tracking.report_to, tracking.project_name) == (("wandb",), "easy_r1")
    assert tracking.run_name == "qwen2_5_7b_math_grpo"
    assert config_of("trainer.save_model_only=true").trainer.save_only_model
    assert ours.rewards["easyr1"].type == "./examples/reward_function/math.py:compute_score"


def test_what_is_lost_is_said_first(tmp_path: Path, mmr1):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    code, said, message = mmr1("migrate", tmp_path / "theirs.yaml", "data.seeed=2",
                               "--output", tmp_path / "ours.yaml")  # fmt: skip
    assert code == 0, message
    head, first, *rest = said.splitlines()
    ours, theirs = tmp_path / "ours.yaml", tmp_path / "theirs.yaml"
    assert head == f"wrote {ours} from {theirs}, read as EasyR1; lost or different in mmr1:"
    assert first.startswith("- ")
    assert any("data.seeed: 2: no key that is known here" in line for line in rest)
    assert not any("not needed;" in line for line in rest)
    assert re.fullmatch(rf"not needed in mmr1, and listed in {ours}: \d+", rest[-1])
    written = (tmp_path / "ours.yaml").read_text()
    assert 0 < written.index("data.seeed") < written.index("not needed;")
    assert load_config(tmp_path / "ours.yaml").rollout.n == 5


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_examples_load(name):
    assert config_of(*SCRIPTS[name]).model.path == "Qwen/Qwen2.5-7B-Instruct"


def test_a_validation_without_data_and_a_limit_without_checkpoints_are_not_written():
    ours = config_of("~data.val_files", "trainer.save_freq=-1", "trainer.logger=console").trainer
    assert (ours.validation, ours.checkpoints, ours.tracking) == (None, None, None)


def test_a_smaller_window_leaves_less_to_the_prompt():
    key = "worker.rollout.max_model_len"
    small, large = migrated(f"{key}=3000"), migrated(f"{key}=9000")
    assert small.tree["rollout"]["max_prompt_length"] == 952
    assert large.tree["rollout"]["max_prompt_length"] == 2048
    assert all(any(note.startswith(key) for note in m.notes) for m in (small, large))


def test_an_adaptive_coefficient_has_another_rate():
    keys = ("use_kl_loss=false", "kl_type=adaptive", "kl_target=0.2", "kl_horizon=25600")
    migration = migrated(*(f"algorithm.{key}" for key in keys))
    assert migration.tree["algorithm"]["kl"]["target"] == 0.2
    assert any("there by completions / horizon = 0.1 of it" in note for note in migration.notes)


def test_nothing_of_the_examples_is_silent():
    examples = [theirs_with(*overrides) for overrides in SCRIPTS.values()]
    assert silent_keys(EASYR1, examples) == set()
    assert unlisted_keys(EASYR1, examples) == set()


def test_what_the_scripts_set():
    cispo = config_of(*SCRIPTS["qwen2_5_vl_7b_geo3k_cispo"]).algorithm
    assert (cispo.name, cispo.loss.type) == ("cispo", "cispo")
    assert (cispo.loss.clip_ratio_low, cispo.loss.clip_ratio_high) == (0, 4)
    dapo = config_of(*SCRIPTS["qwen3_14b_dapo17k_dapo"])
    assert (dapo.algorithm.loss.clip_ratio_dual, dapo.algorithm.kl) == (10.0, None)
    assert dapo.algorithm.resamples.max_num_gen_batches == 10
    assert dapo.algorithm.resamples.range is None  # not by that score, so not by the whole reward
    assert dapo.mini_batches == 16
    assert dapo.optimizer.scheduler.warmup_steps == 160  # ten rollouts
    assert dapo.rewards["easyr1"].settings == {"overlong_penalty_factor": 1.0}
    assert any(
        "accuracy_normalized" in n for n in migrated(*SCRIPTS["qwen3_14b_dapo17k_dapo"]).notes
    )
    sapo = config_of(*SCRIPTS["qwen2_5_vl_7b_geo3k_sapo"]).algorithm
    assert sapo.loss == loss.parts["sapo"].section(tau_pos=1.0, tau_neg=1.05, agg_mode="token-mean")
    gspo = config_of(*SCRIPTS["qwen2_5_vl_7b_geo3k_gspo"]).algorithm
    assert gspo.loss == loss.parts["gspo"].section(
        clip_ratio_low=3e-4, clip_ratio_high=4e-4, clip_ratio_dual=3
    )
    lora = config_of(*SCRIPTS["qwen3_4b_math_grpo_lora"]).model
    assert (lora.lora.rank, lora.lora.alpha, lora.freeze_vision_tower) == (64, 64, True)
    assert config_of("trainer.max_steps=60").trainer.max_steps == 60
    warmed = config_of("worker.actor.optim.lr_warmup_ratio=0.1").optimizer.scheduler
    assert warmed.warmup_steps == 0.1
    learned = ("algorithm.adv_estimator=gae", "trainer.critic_warmup=3", "algorithm.lam=0.9")
    algorithm = config_of(*learned).algorithm
    critic = algorithm.critic
    assert (algorithm.advantage.lam, critic.cliprange_value) == (0.9, 0.5)
    assert (critic.warmup_steps, critic.lr) == (3, 1e-6)
    assert any("the policy's mini-batches, of 128 prompts" in n for n in migrated(*learned).notes)


def test_a_bare_configuration_has_their_defaults():
    bare = {"worker": {"actor": {"model": {"model_path": "a"}}, "rollout": {"n": 4}}}
    migration = migrate(EASYR1, bare)
    ours = loaded(EASYR1, migration)
    assert ours.algorithm.kl == KlReward(coef=1e-3, estimator="k1")
    assert (ours.data.train_batch_size, ours.algorithm.ppo_mini_batch_size) == (512, 256)
    assert (ours.seed, ours.optimizer.weight_decay, ours.trainer.total_epochs) == (1, 0.01, 15)
    assert ours.data.columns == {"problem": "prompt"}
    named = migrate(
        EASYR1, {"worker": {"reward": {"reward_function": "x.py"}, "rollout": {"n": 4},
                    "actor": {"model": {"model_path": "a"}}}}
    )  # fmt: skip
    assert named.tree["rewards"]["easyr1"]["type"] == "x.py:main"


def test_an_advantage_of_tokens_and_another_loss():
    plain = "algorithm.adv_estimator=reinforce_plus_plus"
    cispo = config_of(plain, "worker.actor.loss_type=cispo").algorithm
    assert (cispo.advantage.type, cispo.loss.type, cispo.loss.clip_ratio_high) == (
        "reinforce_pp", "cispo", 0.3,
    )  # fmt: skip
    gspo = (plain, "worker.actor.loss_type=gspo")
    assert config_of(*gspo).algorithm.loss.type == "ppo"
    assert any("do not go with one ratio per completion" in n for n in migrated(*gspo).notes)


def test_validations_are_sampled_as_theirs():
    sampled = config_of().eval.sampled
    assert (sampled.n, sampled.temperature, sampled.top_p, sampled.top_k) == (1, 0.6, 0.95, 0)
    prefix = "worker.rollout.val_override_config"
    trained = ["worker.rollout.top_p=0.8", "worker.rollout.top_k=50", f"{prefix}.temperature=0.5"]
    theirs = theirs_with(*trained)
    del theirs[f"{prefix}.top_p"]
    sampled = loaded(EASYR1, migrate(EASYR1, theirs)).eval.sampled
    assert (sampled.temperature, sampled.top_p, sampled.top_k) == (0.5, 0.8, 50)
    assert config_of(*trained, f"{prefix}.top_k=20").eval.sampled.top_k == 20


def test_greedy_validation():
    prefix = "worker.rollout.val_override_config"
    assert config_of(f"{prefix}.temperature=0").eval.n == 0
    assert config_of(f"{prefix}.temperature=0.0", f"{prefix}.n=4").eval.n == 0
    assert any(f"{prefix}.n: 4" in n for n in migrated(f"{prefix}.temperature=0",
                                                       f"{prefix}.n=4").notes)  # fmt: skip


def test_adapters_have_their_default_alpha():
    bare = {"worker.actor.model.model_path": "m", "worker.rollout.n": 4}
    assert migrate(EASYR1, {**bare, "worker.actor.model.lora.rank": 8}).tree["model"]["lora"] == {
        "rank": 8, "alpha": 64, "target_modules": "all-linear",
    }  # fmt: skip


def test_check_shows_the_losses_side_by_side(tmp_path: Path, mmr1):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    code, output, _ = mmr1(
        "migrate", tmp_path / "theirs.yaml", "worker.actor.loss_type=cispo", "--check"
    )
    assert code == 0
    assert re.search(r"worker.actor.loss_type +cispo +loss.type +cispo", output)
    assert re.search(r"clip_ratio_high +0\.3 +loss\.clip_ratio_high +0\.3", output)
    assert re.search(r"algorithm.adv_estimator +grpo +advantage.type +grpo", output)
    assert "clip_ratio_dual" not in output  # cispo does not read it, nor SAPO's temperatures
    assert "tau_positive" not in output
    assert "worker.actor.clip_ratio_low" in output


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        (["algorithm.disable_kl=true"], set()),
        (
            ["algorithm.disable_kl=false"],
            {"algorithm.kl_coef", "algorithm.use_kl_loss", "algorithm.kl_penalty"},
        ),
    ],
)
def test_check_leaves_out_what_is_not_in_force(overrides, shown, tmp_path: Path):
    """Without a KL term its coefficient and estimator are numbers that nobody reads."""
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    output = migrate_file(tmp_path / "theirs.yaml", overrides).side_by_side
    settings = output.partition("\n\n")[0]
    first = {line.split()[0] for line in settings.splitlines()}
    assert {"algorithm.disable_kl"} | shown == {key for key in first if "kl" in key}


def test_our_own_configuration_is_not_taken_for_another_projects(tmp_path: Path):
    run = REPOSITORY / "scripts/recipes/quickstart/rl.yaml"
    with pytest.raises(ValueError, match=r"rl\.yaml: this is a configuration of mmr1 already"):
        migrate_file(run)
    (tmp_path / "whole.yaml").write_text(dump_yaml(load_config(run)))
    with pytest.raises(ValueError, match=r"this is a configuration of mmr1 already"):
        migrate_file(tmp_path / "whole.yaml")


def test_what_is_none_of_theirs_is_refused(tmp_path: Path, mmr1):
    (tmp_path / "x.yaml").write_text("actor_rollout_ref: {}\n")
    code, _, message = mmr1("migrate", tmp_path / "x.yaml")
    assert code == 2
    assert "not keys of EasyR1" in message
    with pytest.raises(ValueError, match="'other' has no counterpart; it can be one of grpo, rloo"):
        migrated("algorithm.adv_estimator=other")
    with pytest.raises(ValueError, match="'trainer' is not an override"):
        migrated("trainer")


# --- The loss and its gradient, against a slow plain reading of EasyR1's core_algos -------------


def their_advantages(estimator: str, scores: list[list[float]]) -> list[float]:
    advantages = []
    for group in scores:
        for own in group:
            if estimator == "rloo":
                advantages.append(own - (sum(group) - own) / (len(group) - 1))
            elif estimator == "grpo":
                deviation = statistics.stdev(group)
                advantages.append((own - statistics.mean(group)) / (deviation + 1e-6))
            else:  # grpo_passk, as its paper has it: 0 for all but the best
                best, second = sorted(group, reverse=True)[:2]
                lead = (best - second) / (statistics.stdev(group) + 1e-6)
                advantages.append(lead if own == best else 0.0)
    return advantages


def their_kl(kind: str, d: torch.Tensor) -> torch.Tensor:
    """``d = reference - policy`` of a token."""
    if kind == "kl":
        return -d
    if kind == "abs":
        return d.abs()
    if kind == "mse":
        return d * d / 2
    d = d.clamp(-20, 20)
    return (d.exp() - d - 1).clamp(-10, 10)


def their_loss(flat: dict, new, old, ref, advantages) -> torch.Tensor:
    """One mini-batch, token by token."""
    low, high, dual = (flat[f"worker.actor.clip_ratio_{b}"] for b in ("low", "high", "dual"))
    kind = flat["worker.actor.loss_type"]
    by_token = flat["worker.actor.loss_avg_mode"] == "token"
    total = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(EACH):
        a = advantages[row]
        mean = sum(new[row, t] - old[row, t] for t in range(length)) / length
        for t in range(length):
            log_ratio = new[row, t] - old[row, t]
            if kind == "gspo":
                log_ratio = mean
            if kind == "gspo_token":
                log_ratio = mean.detach() + new[row, t] - new[row, t].detach()
            rho = log_ratio.clamp(-20, 20).exp()
            floor = math.log(1 - low) if low < 1 else -math.inf
            clipped = log_ratio.clamp(floor, math.log(1 + high)).exp()
            if kind == "cispo":
                loss = -a * new[row, t] * clipped.detach()
            elif kind == "sapo":
                tau = flat[f"worker.actor.tau_{'positive' if a >= 0 else 'negative'}"]
                loss = -a * 4 / tau * torch.sigmoid(tau * (rho - 1))
            else:
                loss = torch.maximum(-a * rho, -a * clipped)
                if a < 0:
                    loss = torch.minimum(loss, torch.tensor(-a * dual, dtype=loss.dtype))
            if flat["algorithm.use_kl_loss"] and not flat["algorithm.disable_kl"]:
                kl = their_kl(flat["algorithm.kl_penalty"], ref[row, t] - new[row, t])
                loss = loss + flat["algorithm.kl_coef"] * kl
            total = total + loss / (sum(EACH) if by_token else length * len(EACH))
    return total


@pytest.mark.parametrize(
    ("loss", "estimator"),
    [
        *product(("default", "gspo", "gspo_token", "cispo", "sapo"), ("grpo",)),
        *product(("default", "cispo", "sapo"), ("rloo",)),
        ("default", "grpo_passk"),
    ],
)
@pytest.mark.parametrize(
    "keys",
    [
        {"worker.actor.loss_avg_mode": "token"},
        {"worker.actor.loss_avg_mode": "seq", "worker.actor.clip_ratio_dual": 1.2},
        {"algorithm.kl_penalty": "mse", "algorithm.kl_coef": 0.3},
        {"algorithm.kl_penalty": "abs", "algorithm.kl_coef": 0.3},
        {"algorithm.use_kl_loss": False, "algorithm.kl_penalty": "kl", "algorithm.kl_coef": 0.3},
        {"algorithm.disable_kl": True},
    ],
    ids=["token", "seq", "mse", "abs", "in the reward", "no KL"],
)
def test_the_loss_and_its_gradient_are_theirs(loss, estimator, keys):
    keys = {**keys, "worker.actor.loss_type": loss, "algorithm.adv_estimator": estimator}
    theirs = theirs_with(*(f"{k}={v}" for k, v in keys.items()))
    migration = migrate(EASYR1, theirs)
    flat = {**DEFAULTS, **theirs}
    x = tensors()
    scores = [list(row) for row in REWARDS]
    if not flat["algorithm.disable_kl"] and not flat["algorithm.use_kl_loss"]:
        for row, t in tokens():
            kl = their_kl(flat["algorithm.kl_penalty"], x.ref[row, t] - x.old[row, t])
            scores[row // 3][row % 3] -= flat["algorithm.kl_coef"] * float(kl)
    expected = their_loss(flat, x.new, x.old, x.ref, their_advantages(estimator, scores))
    ours = our_loss(migration.tree["algorithm"], x)
    # The value of gspo_token is that of gspo, token by token.
    check_equal(ours, expected, x.new, value=loss != "gspo_token")
