"""The scripts of OpenRLHF and LMM-R1, carried over with the defaults of their versions."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mmr1.config.file import config_from, load_config
from mmr1.config.kl import KlReward
from mmr1_contrib.migrate.command import migrate_file
from mmr1_contrib.migrate.openrlhf import LMM_R1, OPENRLHF
from mmr1_contrib.migrate.reading import with_arguments
from mmr1_contrib.migrate.source import Source, flattened, migrate
from tests.contrib.migrate.checks import loaded, silent_keys, unlisted_keys
from tests.contrib.migrate.losses import (
    EACH,
    REWARDS,
    Tensors,
    check_equal,
    our_loss,
    tensors,
    tokens,
)

EXAMPLES: dict[str, dict[str, Any]] = {
    name: flattened(keys)
    for name, keys in yaml.safe_load(
        (Path(__file__).parent / "examples/openrlhf.yaml").read_text()
    ).items()
}


def source_of(example: str) -> Source:
    return OPENRLHF if example.startswith("openrlhf/") else LMM_R1


def migrated(*overrides: str):
    base = {"actor.model_name_or_path": "m", "rollout.n_samples_per_prompt": 3}
    return migrate(OPENRLHF, with_arguments(base, overrides, OPENRLHF))


OLD = r"""
export SAVE="/checkpoints"
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="{\"working_dir\": \"$(pwd)\"}" \
   -- python -m openrlhf.cli.train_ppo_ray \
   --remote_rm_url http://127.0.0.1:5000/get_reward \
   --vllm_num_engines 8 --colocate_all_models \
   --pretrain ${MODEL:-Qwen/Qwen2.5-VL-3B-Instruct} \
   --save_path ${SAVE}/run \
   --train_batch_size 256 --rollout_batch_size 256 --n_samples_per_prompt 16 \
   --prompt_max_len 4096 --generate_max_len 2048 \
   --advantage_estimator reinforce_baseline --use_kl_loss --kl_estimator k2 \
   --actor_learning_rate 1e-6 --bf16 \
   --prompt_data $DATASET --input_key message --label_key "answer" \
   --freeze_prefix visual --save_steps 20 --adm_offload \
   --use_wandb my-secret-key --use_tensorboard ./logs > >(tee log) 2>&1 &
"""


def test_a_script_as_it_stands(tmp_path: Path, mmr1, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run.sh").write_text(OLD)
    code, output, message = mmr1("migrate", tmp_path / "run.sh", "num_episodes=2")
    assert code == 0, message
    assert "read as OpenRLHF 0.7, LMM-R1" in output
    assert "(did you mean 'adam_offload'?)" in output
    assert "my-secret-key" not in output
    assert "DATASET is not set in the script" in output
    (tmp_path / "ours.yaml").write_text(output)
    monkeypatch.setenv("DATASET", "./geo.jsonl")
    ours = load_config(tmp_path / "ours.yaml")
    assert (ours.data.train, ours.data.format) == ("./geo.jsonl", "lmm_r1")
    assert (ours.data.train_batch_size, ours.rollout.n, ours.mini_batches) == (256, 16, 16)
    assert (ours.rollout.max_prompt_length, ours.rollout.max_response_length) == (4096, 2048)
    algorithm = ours.algorithm
    assert (algorithm.name, algorithm.kl.estimator) == ("reinforce_pp_baseline", "k2")
    # The defaults of that version, which the script does not name.
    assert (algorithm.kl.coef, ours.optimizer.betas) == (0.01, (0.9, 0.95))
    assert (ours.optimizer.scheduler.warmup_steps, ours.optimizer.min_lr) == (
        0.03,
        pytest.approx(1e-7),
    )
    assert (ours.trainer.total_epochs, ours.trainer.trackers) == (2, ("wandb", "tensorboard"))
    assert ours.model.freeze_vision_tower
    assert ours.rewards["openrlhf"].url == "http://127.0.0.1:5000/get_reward"


def test_names_with_dots(tmp_path: Path, mmr1):
    (tmp_path / "run.sh").write_text(
        "read -r -d '' training_commands <<EOF\nopenrlhf.cli.train_ppo_ray \\\n"
        "  --actor.model_name_or_path m --rollout.n_samples_per_prompt 8 \\\n"
        "  --algo.kl.init_coef 0 --actor.eps_clip_low_high 0.2 0.27 --vllm.num_engines 1\n"
        "EOF\ndeepspeed --module $training_commands\n"
    )
    code, output, message = mmr1("migrate", tmp_path / "run.sh", "--from", "openrlhf", "--check")
    assert code == 0, message
    assert "actor.eps_clip_low_high" in output
    assert "loss.clip_ratio_low, loss.clip_ratio_high" in output
    code, output, _ = mmr1("migrate", tmp_path / "run.sh")
    ours = config_from(yaml.safe_load(output))
    critic = ours.algorithm.critic  # the estimator is gae unless it is set
    assert (ours.algorithm.name, critic.lr, critic.cliprange_value) == ("ppo", 9e-6, 0.5)
    assert ours.algorithm.reward_clip_range == (-10, 10)


@pytest.mark.parametrize("source", [OPENRLHF, LMM_R1], ids=lambda source: source.title)
def test_nothing_of_the_examples_is_silent(source):
    examples = [keys for name, keys in EXAMPLES.items() if source_of(name) is source]
    assert len(examples) > (6 if source in (OPENRLHF, LMM_R1) else 0)
    # max_steps is in one script of LMM-R1, and no option of OpenRLHF: its parser refuses it.
    assert unlisted_keys(source, examples) <= {"max_steps"}
    today = {"actor.model_name_or_path": "m", "rollout.n_samples_per_prompt": 3}
    in_use = {
        **today,
        "algo.kl.init_coef": 0.1,
        "algo.kl.estimator": "k3",
        "algo.kl.use_loss": True,
    }
    spelled = {name: old for old, name in source.older.items()}
    in_use = {spelled.get(key, key): value for key, value in in_use.items()}
    in_use = {key: value for key, value in in_use.items() if source in (OPENRLHF, LMM_R1)}
    assert silent_keys(source, [*examples, *([in_use] if in_use else [])]) == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_load(name):
    source = source_of(name)
    assert loaded(source, migrate(source, EXAMPLES[name])).trainer.output_dir


def test_frozen_parts_an_offloaded_reference_and_a_window():
    ours = loaded(OPENRLHF, migrated(
        "freeze_prefix=[visual, embed]", "ref.offload=True", "data.max_len=4096",
        "rollout.max_new_tokens=1000", "algo.kl.init_coef=0.1", "actor.entropy_coef=0.01",
    ))  # fmt: skip
    assert ours.optimizer.frozen_parts == ("embed",)
    assert ours.model.freeze_vision_tower
    assert ours.algorithm.kl == KlReward(coef=0.1, reference={"type": "initial", "offload": True})
    assert (ours.rollout.max_prompt_length, ours.rollout.max_response_length) == (3096, 1000)
    assert ours.algorithm.entropy.coef == 0.01
    assert loaded(OPENRLHF, migrated("actor.entropy_coef=0")).algorithm.entropy is None


def test_what_the_keys_mean():
    filtered = migrated("algo.dynamic_filtering_enable=True", "vllm.num_engines=2").tree
    kept = filtered["algorithm"]["filter_groups"]["range"]
    assert kept == {"metric": "overall", "between": [0, 1]}
    penalised = migrated(
        "reward.remote_url=r.py", "reward.overlong_buffer_len=6", "data.max_len=64"
    )
    functions = penalised.tree["rewards"]
    assert functions["openrlhf"] == {"type": "r.py:reward_func"}
    assert {k: functions["overlong"][k] for k in ("max_length", "buffer")} == {
        "max_length": 32,
        "buffer": 6,
    }
    corrected = migrated("algo.advantage.is_correction_enable=True")
    weights = corrected.tree["algorithm"]["rollout_correction"]["importance_sampling"]
    assert weights == {"level": "token", "threshold": 5.0}
    assert any("no lower bound" in note for note in corrected.notes)
    group = ("algo.advantage.estimator=group_norm", "algo.kl.init_coef=0.1")
    sequences = migrated(*group, "actor.policy_loss_type=gspo", "algo.kl.use_loss=True",
                         "algo.advantage.is_correction_enable=True").notes  # fmt: skip
    assert any("in OpenRLHF over tokens" in note for note in sequences)
    assert any("gspo has the engine's log-probs in its ratio" in note for note in sequences)
    with pytest.raises(ValueError, match="estimator=other: it can be one of gae, reinforce"):
        migrated("algo.advantage.estimator=other")


# --- The loss and its gradient, against a slow plain reading of OpenRLHF's loss and advantages ---


def their_advantages(flat: dict[str, Any], x: Tensors) -> dict[tuple[int, int], float]:
    estimator, advantages = flat["algo.advantage.estimator"], {}
    for row, length in enumerate(EACH):
        group = REWARDS[row // 3]
        mean, reward = statistics.mean(group), group[row % 3]
        match estimator:
            case "rloo":
                reward -= (sum(group) - reward) / (len(group) - 1)
            case "reinforce_baseline" | "dr_grpo":
                reward -= mean
            case "group_norm":
                reward = (reward - mean) / (statistics.stdev(group) + 1e-9)
        low, high = flat["reward.clip_range"]
        cumulative = 0.0
        for t in reversed(range(length)):
            penalty = 0.0
            if not flat["algo.kl.use_loss"]:
                penalty = flat["algo.kl.init_coef"] * float(x.old[row, t] - x.ref[row, t])
            last = min(max(reward, low), high) if t == length - 1 else 0.0
            cumulative = last - penalty + flat["algo.advantage.gamma"] * cumulative
            advantages[row, t] = cumulative
    if estimator not in ("reinforce", "reinforce_baseline"):
        return advantages
    mean = statistics.mean(advantages.values())
    deviation = statistics.pstdev(advantages.values())
    return {at: (value - mean) / deviation for at, value in advantages.items()}


def their_loss(flat: dict[str, Any], x: Tensors) -> torch.Tensor:
    low, high = flat.get("actor.eps_clip_low_high") or (flat["actor.eps_clip"],) * 2
    is_gspo, dual = flat["actor.policy_loss_type"] == "gspo", flat.get("actor.dual_clip")
    advantages, total = their_advantages(flat, x), torch.zeros((), dtype=torch.float64)
    for row, t in tokens():
        a, d = advantages[row, t], x.new[row, t] - x.ref[row, t]
        ratio = (x.new[row, t] - x.old[row, t]).exp()
        if is_gspo:
            ratio = (x.new[row] - x.old[row])[: EACH[row]].mean().exp()
        loss = torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
        if dual is not None and a < 0:
            loss = torch.maximum(loss, torch.full_like(loss, dual * a))
        loss = -loss
        if flat["algo.kl.use_loss"]:
            kl = {"k1": d, "k2": d * d / 2, "k3": (-d).exp() - 1 + d}[flat["algo.kl.estimator"]]
            loss = loss + flat["algo.kl.init_coef"] * kl
        total = total + loss / (EACH[row] * len(EACH) if is_gspo else sum(EACH))
    return total


LOSSES = {
    "group_norm": ["algo.advantage.estimator=group_norm", "algo.kl.use_loss=True",
                   "algo.kl.estimator=k3", "algo.kl.init_coef=0.2"],
    "dr_grpo": ["algo.advantage.estimator=dr_grpo", "algo.kl.init_coef=0"],
    "rloo": ["algo.advantage.estimator=rloo", "algo.kl.use_loss=True", "actor.dual_clip=1.2"],
    "reinforce": ["algo.advantage.estimator=reinforce", "algo.kl.init_coef=0.1"],
    "reinforce, discounted": ["algo.advantage.estimator=reinforce", "algo.advantage.gamma=0.9",
                              "reward.clip_range=[0, 0.4]"],
    "reinforce_baseline": ["algo.advantage.estimator=reinforce_baseline", "algo.kl.use_loss=True",
                           "algo.kl.estimator=k2", "algo.kl.init_coef=0.3"],
    "dapo": ["algo.advantage.estimator=group_norm", "algo.kl.init_coef=0",
             "actor.eps_clip_low_high=[0.2, 0.28]"],
    "gspo": ["algo.advantage.estimator=group_norm", "algo.kl.init_coef=0",
             "actor.policy_loss_type=gspo", "actor.eps_clip=0.05"],
}  # fmt: skip
COMPARED = [
    name
    for name, keys in EXAMPLES.items()
    if keys.get("algo.advantage.estimator", keys.get("advantage_estimator", "gae")) != "gae"
    and (keys.get("algo.kl.use_loss") or keys.get("use_kl_loss") or keys.get("init_kl_coef") == 0)
    and keys.get("advantage_estimator") != "rloo"
]


@pytest.mark.parametrize("name", [*LOSSES, *COMPARED])
def test_the_loss_and_its_gradient_are_theirs(name):
    if name in EXAMPLES:
        source, given = source_of(name), EXAMPLES[name]
        migration = migrate(source, given)
    else:
        source, migration = OPENRLHF, migrated(*LOSSES[name])
        given = with_arguments({}, LOSSES[name], source)
    flat = {**source.defaults, **{source.older.get(key, key): v for key, v in given.items()}}
    x = tensors(2)
    check_equal(our_loss(migration.tree["algorithm"], x), their_loss(flat, x), x.new)


def test_verls_supervised_training_is_not_taken_for_openrlhfs(tmp_path: Path):
    """It has sections ``model`` and ``data`` too, and no migration."""
    (tmp_path / "sft.yaml").write_text(
        "data: {train_files: a.parquet, train_batch_size: 8}\nmodel: {partial_pretrain: m}\n"
        "optim: {lr: 1.0e-5}\ntrainer: {total_epochs: 2}\n"
    )
    with pytest.raises(ValueError, match=r"these are not keys of EasyR1, verl, "):
        migrate_file(tmp_path / "sft.yaml")


def test_some_examples_are_compared():
    assert len(COMPARED) >= 4
