"""R1-V and its forks: whose script it is, what it counts, and the loss of its trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmr1.config import Config, ViewsConfig
from mmr1_contrib.migrate.command import migrate_file
from mmr1_contrib.migrate.source import migrate
from mmr1_contrib.migrate.sources import sources_of
from tests.contrib.migrate.losses import EACH, REWARDS, check_equal, our_loss, tensors, tokens

LAUNCH = "torchrun --nproc_per_node=8 --nnodes=1 src/{program} "
COMMON = (
    "--output_dir out --model_name_or_path m --dataset_name rows.jsonl "
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 2 "
)


def script(folder: Path, program: str, rest: str = "", launch: str = LAUNCH) -> Path:
    path = folder / "run.sh"
    path.write_text(f"cd code\n{launch.format(program=program)}{COMMON}{rest}\n")
    return path


def checkout(folder: Path, program: str, text: str, trainer: str = "") -> None:
    """The program of a fork, below the folder that the script changes into."""
    file = folder / "code/src" / program
    (file.parent / "trainer").mkdir(parents=True)
    file.write_text(text)
    (file.parent / "trainer/grpo_trainer.py").write_text(trainer)


def config(path: Path, *overrides: str, project: str | None = None) -> Config:
    return Config.model_validate(migrate_file(path, overrides, project=project).migration.tree)


@pytest.mark.parametrize(
    ("program", "rest", "kind", "prompts"),
    [
        ("open_r1/grpo.py", "", "r1-v", 128),
        ("open_r1/grpo.py", "--temporal true", "video-r1", 128),
        ("open_r1/grpo_jsonl.py", "--task_type rec", "vlm-r1", 16),
        ("open_r1_video/grpo.py", "", "open-r1-video", 128),
    ],
)
def test_keys_tell_the_fork_and_what_its_batches_count(tmp_path, program, rest, kind, prompts):
    migrated = migrate_file(script(tmp_path, program, rest))
    assert migrated.given.source.kind == kind
    assert migrated.migration.tree["data"]["train_batch_size"] == prompts


@pytest.mark.parametrize(
    ("program", "text", "trainer", "rest", "kind"),
    [
        ("open_r1/grpo.py", "class A:\n    temporal: bool = True\n", "", "", "video-r1"),
        ("open_r1/grpo.py", "", "class RepeatRandomSampler: ...", "", "vlm-r1"),
        ("open_r1/grpo.py", "x = 1", "", "--use_vllm true", "r1-v-early"),
        ("open_r1/grpo_rec.py", "from trl import GRPOConfig", "", "", "vlm-r1-release"),
        ("open_r1/grpo_rec.py", "from open_r1.trainer import GRPOConfig", "", "", "r1-onevision"),
        ("open_r1/grpo_jsonl.py", "class A:\n    vlm_trainer: str = ''\n", "", "", "r1-onevision"),
        ("open_r1/grpo.py", "from t import HumanOmniVLGRPOTrainer", "", "", "r1-omni"),
    ],
)  # fmt: skip
def test_the_program_in_the_checkout_tells_the_fork(tmp_path, program, text, trainer, rest, kind):
    checkout(tmp_path, program, text, trainer)
    assert migrate_file(script(tmp_path, program, rest)).given.source.kind == kind


def test_a_program_of_several_forks_is_refused_with_their_names(tmp_path):
    path = script(tmp_path, "open_r1/grpo_jsonl.py")
    with pytest.raises(ValueError, match="add --from vlm-r1, or vlm-r1-release, or r1-onevision"):
        migrate_file(path)
    assert config(path, project="vlm-r1").data.train_batch_size == 16
    assert config(path, project="r1-onevision").data.train_batch_size == 128
    path = script(tmp_path, "open_r1/grpo.py", "--config recipe.yaml")  # Hugging Face's open-r1
    with pytest.raises(ValueError, match="is the program of several projects"):
        migrate_file(path)


def test_the_defaults_are_those_of_the_era(tmp_path):
    ours = config(script(tmp_path, "open_r1/grpo.py"))
    assert ours.algorithm.kl.coef == 0.04
    assert ours.algorithm.kl.use_bias_correction_kl is False
    assert (ours.rollout.max_response_length, ours.rollout.max_prompt_length) == (256, 512)
    assert (ours.rollout.temperature, ours.rollout.top_k) == (1.0, 50)
    assert ours.algorithm.loss.agg_mode == "seq-mean-token-mean"
    assert ours.algorithm.rollout_correction.importance_sampling is None
    assert (ours.optimizer.lr, ours.optimizer.weight_decay) == (1e-6, 0)
    assert ours.data.image.max_pixels == 12845056
    by_vllm = config(script(tmp_path, "open_r1/grpo.py", "--use_vllm true")).rollout
    assert (by_vllm.temperature, by_vllm.top_k) == (0.9, 0)


def test_what_video_r1_has_besides(tmp_path):
    ours = config(script(tmp_path, "open_r1/grpo.py", "--temporal true --max_pixels 401408"))
    assert (ours.rollout.top_p, ours.data.image.max_pixels) == (0.95, 200704)
    functions = ours.rewards
    contrast, length = (dict(functions[n]) for n in ("temporal_contrast", "length_bonus"))
    assert (contrast["shuffled_factor"], contrast["correct_above"], contrast["bonus"]) == (
        0.8, 0.1, 0.3
    )  # fmt: skip
    assert ours.rollout.views == ViewsConfig(view="shuffle", share=0.5, loss="none")
    assert (length["min_length"], length["max_length"], length["bonus"]) == (320, 512, 0.2)
    assert next(iter(functions)) == contrast["of"] == "accuracy"
    neither = "--temporal false --len_control false"
    plain = config(script(tmp_path, "open_r1/grpo.py", neither)).rewards
    assert list(plain) == ["accuracy", "format"]


def test_what_vlm_r1_has_besides(tmp_path):
    keys = (
        "--task_type rec --is_reward_customized_from_vlm_module True --freeze_vision_modules true "
        "--data_file_paths a.jsonl:b.jsonl --image_folders /coco:/coco --epsilon_high 0.28 "
        "--num_iterations 2"
    )
    path = script(tmp_path, "open_r1/grpo_jsonl.py", keys)
    ours = config(path)
    assert list(ours.data.train) == ["code/a.jsonl", "code/b.jsonl"]
    assert ours.data.media_root == "/coco"
    assert ours.model.freeze_vision_tower
    assert (ours.algorithm.loss.clip_ratio_high, ours.algorithm.ppo_epochs) == (0.28, 2)
    assert ours.rewards["accuracy"].type == (
        "code/src/open_r1/vlm_modules/qwen_module.py:Qwen2VLModule.iou_reward"
    )
    assert ours.data.prompt_template == (
        "code/src/open_r1/vlm_modules/qwen_module.py:Qwen2VLModule.get_question_template[rec]"
    )
    several = config(script(tmp_path, "open_r1/grpo_jsonl.py", keys.replace("/coco:/coco", "a:b")))
    assert several.data.media_root == "a"
    assert any("image_folders" in note for note in migrate_file(tmp_path / "run.sh").lost)


def naive_loss(x: Any, beta: float) -> torch.Tensor:
    """The trainers': the ratio of the policy to itself, k3 to the reference, two means."""
    rows = [torch.zeros((), dtype=torch.float64) for _ in EACH]
    for row, t in tokens():
        group = torch.tensor(REWARDS[row // 3], dtype=torch.float64)
        advantage = (group[row % 3] - group.mean()) / (group.std() + 1e-4)
        new, ref = x.new[row, t], x.ref[row, t]
        kl = (ref - new).exp() - (ref - new) - 1
        rows[row] = rows[row] - ((new - new.detach()).exp() * advantage - beta * kl)
    return sum(r / n for r, n in zip(rows, EACH, strict=True)) / len(EACH)


@pytest.mark.parametrize("kind", ["r1-v", "video-r1", "vlm-r1", "open-r1-video", "r1-onevision"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_loss_and_its_gradient_are_the_trainers(kind, beta):
    """On the policy that sampled, as all their scripts have it."""
    x = tensors(2)
    x = type(x)(x.new, x.new.detach().clone(), x.ref, x.entropy)
    (source,) = sources_of(kind)
    tree = migrate(source, {"model_name_or_path": "m", "num_processes": 8, "beta": beta}).tree
    check_equal(our_loss(tree["algorithm"], x), naive_loss(x, beta), x.new)


@pytest.mark.parametrize(
    ("launch", "processes"),
    [
        ("torchrun --nproc_per_node=4 --nnodes=2 ", 8),
        ("torchrun --nproc_per_node 4 --nnodes 2 ", 8),
        ("deepspeed --num_gpus 4 --num_nodes 3 ", 12),
        ("accelerate launch --num_processes 4 --num_machines 2 ", 4),
        ("torchrun --standalone --nproc_per_node=2 ", 2),
    ],
)
def test_processes_of_all_machines_are_counted(tmp_path, launch, processes):
    path = script(tmp_path, "open_r1/grpo.py", launch=f"{launch}src/{{program}} ")
    assert config(path).data.train_batch_size == 16 * processes


def test_the_value_of_an_argument_is_not_the_program(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "trl grpo --model_name_or_path m --dataset_name a/b --num_processes 8 --beta 0.5 "
        "--external_plugins examples/scripts/grpo_vlm.py --num_generations 4\n"
    )
    ours = config(path)
    assert (ours.algorithm.kl.coef, ours.rollout.n) == (0.5, 4)


TRL = "trl grpo --model_name_or_path m --dataset_name a/b"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("swift rlhf --rlhf_type grpo --external_plugins a/grpo/plugin.py", "ms-swift"),
        ("python train_grpo.py --beta 0.1", "if train_grpo.py is of one of them, add --from"),
        ("trl grpo --model_name_or_path m --dataset_name", "dataset_name=True"),
        (f"{TRL} --reward_funcs x.y --reward_weights 1 2", "reward_weights: 2 for 1 reward_funcs"),
        (f"{TRL} --num_generations 0", "num_generations=0"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(tmp_path, command, message):
    path = tmp_path / "run.sh"
    path.write_text(f"{command}\n")
    with pytest.raises(ValueError, match=message):
        migrate_file(path)


def test_a_placeholder_is_a_word_and_the_scripts_folder_is_known(tmp_path):
    path = tmp_path / "scripts/run.sh"
    path.parent.mkdir()
    path.write_text(
        'ROOT="$( cd "$( dirname "${BASH_SOURCE[0]}" )/.." && pwd )"\n'
        "torchrun --nproc_per_node=8 src/open_r1/grpo.py --model_name_or_path <PATH-TO-MODEL> "
        "--dataset_name <PATH-TO-DATASET> --output_dir ${ROOT}/out > log.txt\n"
    )
    ours = config(path)
    assert (ours.model.path, ours.data.train) == ("<PATH-TO-MODEL>", "<PATH-TO-DATASET>@train")
    assert ours.trainer.output_dir == str(tmp_path / "out")
