"""A migrated file runs: its paths are those of the script, and it does not warn about itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mmr1.config.checks import warnings_of
from mmr1_contrib.migrate.command import leave_out_idle, migrate_file
from mmr1_contrib.migrate.source import flattened, migrate
from mmr1_contrib.migrate.sources import SOURCES
from tests.contrib.migrate.checks import loaded

VLM_R1 = """\
cd {folder}
torchrun --nproc_per_node=8 src/open_r1/grpo_jsonl.py --output_dir out --model_name_or_path m \\
  --data_file_paths /d/a.jsonl:rows/b.jsonl --image_folders /d/coco:/d/flickr --task_type rec \\
  --is_reward_customized_from_vlm_module True --reward_funcs accuracy format --bf16 \\
  --per_device_train_batch_size 8 --num_generations 8 {rest}
"""
EASYR1 = """\
cd {folder}
python3 -m verl.trainer.main config=config.yaml worker.actor.model.model_path=m \\
  worker.reward.reward_function=./rewards/math.py:compute_score worker.rollout.n=4 {rest}
"""
OPENRLHF = """\
cd {folder}
python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m \\
  --reward.remote_url rewards/math.py --data.prompt_dataset org/name {rest}
"""


def tree(folder: Path, script: str, rest: str = "", inside: str = "/checkout/code"):
    (folder / "config.yaml").write_text("{}\n")
    (folder / "run.sh").write_text(script.format(folder=inside, rest=rest))
    return migrate_file(folder / "run.sh").migration.tree


@pytest.mark.parametrize("inside", ["/checkout/code", "code"])
def test_paths_are_inside_the_folder_that_the_script_enters(tmp_path: Path, inside: str):
    ours = tree(tmp_path, VLM_R1, inside=inside)
    uses = [function["type"] for function in ours["rewards"].values()]
    assert all(use.startswith(f"{inside}/src/open_r1/") for use in uses)
    assert ours["data"]["prompt_template"].startswith(f"{inside}/src/open_r1/")
    assert list(ours["data"]["train"]) == ["/d/a.jsonl", f"{inside}/rows/b.jsonl"]


@pytest.mark.parametrize(
    ("script", "use"),
    [
        (EASYR1, "/checkout/code/./rewards/math.py:compute_score"),
        (OPENRLHF, "/checkout/code/rewards/math.py:reward_func"),
    ],
)
def test_reward_files_are_inside_the_folder_too(tmp_path: Path, script: str, use: str):
    ours = tree(tmp_path, script)
    (function,) = ours["rewards"].values()
    assert function["type"] == use
    assert "/" not in str(ours["data"].get("train", "")).removeprefix("org/")


def test_reward_functions_may_read_the_image_folders(tmp_path: Path):
    functions = tree(tmp_path, VLM_R1)["rewards"].values()
    assert [f["sandbox"]["readable"] for f in functions] == [["/d/coco", "/d/flickr"]] * 2


@pytest.mark.parametrize(("rest", "images"), [("", 16384), ("--max_pixels 401408", 512)])
def test_the_limit_of_prompts_follows_the_largest_image(tmp_path: Path, rest: str, images: int):
    limit = tree(tmp_path, VLM_R1, rest)["rollout"]["max_prompt_length"]
    assert images < limit <= images + 2048


def test_a_program_is_told_that_its_command_is_wanted(tmp_path: Path):
    (tmp_path / "grpo.py").write_text("import trl\n")
    with pytest.raises(ValueError, match=r"grpo\.py is a program.* the command .*\.sh file"):
        migrate_file(tmp_path / "grpo.py")


def examples():
    for file in sorted((Path(__file__).parent / "examples").glob("*.yaml")):
        for name, keys in yaml.safe_load(file.read_text()).items():
            yield pytest.param(file.stem, flattened(keys), id=name)


@pytest.mark.parametrize(("project", "keys"), examples())
def test_a_migrated_example_does_not_warn_about_itself(project, keys):
    """Of whatever kind its keys may be."""
    checked = 0
    for source in [source for source in SOURCES if source.project == project]:
        try:
            migration = migrate(source, keys)
        except ValueError:  # a key of another trainer
            continue
        leave_out_idle(migration, source.command)
        assert warnings_of(loaded(source, migration)) == []
        checked += 1
    assert checked
