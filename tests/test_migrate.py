"""EasyR1's own example, carried over; what cannot be is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1.migrate import RENAMED, TRANSLATED, migrate
from tests.paths import REPOSITORY

THEIRS = """
data:
  train_files: hiyouga/math12k@train
  val_files: hiyouga/math12k@test
  prompt_key: question
  answer_key: answer
  max_prompt_length: 2048
  max_response_length: 1024
  rollout_batch_size: 512
  max_pixels: 4194304
  seed: 1
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true, kl_penalty: low_var_kl}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 4
    clip_ratio_high: 0.3
    model: {model_path: Qwen/Qwen2.5-7B-Instruct, freeze_vision_tower: false}
    optim: {lr: 1.0e-6, weight_decay: 1.0e-2, lr_warmup_ratio: 0.1}
    fsdp: {enable_full_shard: true}
  rollout: {n: 5, temperature: 1.0, top_p: 0.99, val_override_config: {temperature: 0.5, n: 1}}
  ref: {offload: {offload_params: false}}
  reward: {score_function: "./examples/math.py:compute_score"}
trainer:
  max_steps: 60
  logger: ["console", "wandb"]
  project_name: easy_r1
  experiment_name: qwen2_5_7b_math_grpo
  save_freq: -1
  val_freq: 5
"""


def changed(**sections: dict) -> dict:
    tree = yaml.safe_load(THEIRS)
    for name, values in sections.items():
        tree[name].update(values)
    return tree


def test_the_example(tmp_path: Path, mmr1):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    code, output, message = mmr1("migrate", tmp_path / "theirs.yaml")
    assert code == 0, message
    (tmp_path / "ours.yaml").write_text(output)
    ours = load_config(tmp_path / "ours.yaml")
    assert ours.data.train == "hiyouga/math12k@train"
    assert (ours.rollout.max_model_len, ours.rollout.sampling.max_tokens) == (3072, 1024)
    assert (ours.rollout.batch_size, ours.rollout.n) == (128, 5)
    assert (ours.algorithm.name, ours.algorithm.kl_estimator) == ("grpo", "k3")
    assert (ours.algorithm.clip_ratio_low, ours.algorithm.clip_ratio_high) == (0.2, 0.3)
    # Four updates a step became four steps; the warm-up is a tenth of these.
    assert (ours.trainer.max_steps, ours.optimizer.warmup_steps) == (240, 24)
    assert ours.trainer.trackers == ["wandb"]
    assert ours.trainer.output_dir == "runs/qwen2_5_7b_math_grpo"
    assert ours.trainer.save_steps == 0
    assert ours.rewards.functions["easyr1"].use == "./examples/math.py:compute_score"
    notes = [line for line in output.splitlines() if line.startswith("#")]
    for text in ("'question' of the data to 'problem'", "data.max_pixels", "trainer.val_freq: 5"):
        assert any(text in note for note in notes), text
    assert not any("micro_batch" in note or "fsdp" in note for note in notes)


def test_what_has_another_name():
    migration = migrate(
        changed(algorithm={"disable_kl": True, "adv_estimator": "reinforce_plus_plus"})
    )
    assert migration.tree["algorithm"]["name"] == "reinforce_pp"
    assert migration.tree["algorithm"]["kl_coef"] == 0.0
    assert (
        migrate(changed(algorithm={"use_kl_loss": False})).tree["algorithm"]["use_kl_loss"] is False
    )
    migration = migrate(changed(algorithm={"adv_estimator": "gae"}))
    assert "name" not in migration.tree["algorithm"]
    assert any("'gae' has no counterpart" in note for note in migration.notes)


def test_epochs_are_left_to_a_person():
    tree = changed(trainer={"total_epochs": 15})
    del tree["trainer"]["max_steps"]
    migration = migrate(tree)
    assert any("15 x (rows of data.train)" in note for note in migration.notes)
    assert any("0.1 x trainer.max_steps" in note for note in migration.notes)


def test_what_is_none_of_theirs_is_refused(tmp_path: Path, mmr1):
    (tmp_path / "x.yaml").write_text("actor_rollout_ref: {}\n")
    code, _, message = mmr1("migrate", tmp_path / "x.yaml")
    assert code == 2
    assert "no 'worker' section" in message


def ours_exists(key: str) -> bool:
    section: object = Config
    for name in key.split("."):
        fields = getattr(section, "model_fields", None)
        if fields is None:
            return True  # below a mapping such as rewards.functions
        if name not in fields:
            return False
        section = fields[name].annotation
    return True


def test_tables_name_keys_that_exist():
    for ours in [*RENAMED.values(), *(ours for ours, _ in TRANSLATED.values())]:
        assert ours_exists(ours), ours
    page = (REPOSITORY / "docs/migration.md").read_text()
    rows = re.findall(r"^\| `[^|]+` \| (.+?) \|", page, re.M)
    keys = [key for row in rows for key in re.findall(r"`([a-z_.]+)(?:=[^`]*)?`", row)]
    assert len(keys) > 60
    for key in keys:
        assert ours_exists(key), key


@pytest.mark.parametrize("theirs", [*RENAMED, *TRANSLATED])
def test_every_key_that_is_carried_over_is_in_the_table(theirs):
    page = (REPOSITORY / "docs/migration.md").read_text()
    assert f"`{theirs}`" in page
