"""Every YAML is a configuration; every recipe is whole, and runs in small."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.config.commands import optional_sections
from mmr1.config.file import command_in, load_config
from mmr1.rewards import RewardItem, build_composite_reward
from mmr1.trainer.sampling.reward_models import named_reward_models
from mmr1.types import Sample
from scripts.dev.exact_table import differences
from scripts.dev.recipe_gpus import stages
from tests.paths import REPOSITORY
from tests.vllm_server import vllm_server

RECIPES = REPOSITORY / "scripts/recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/run.sh"))
EXACT = sorted(RECIPES.glob("*/exact_*.yaml"))
YAMLS = sorted(path for path in RECIPES.rglob("*.yaml") if not path.name.startswith("compare"))


def test_there_are_recipes():
    assert len(NAMES) >= 10


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: str(path.relative_to(RECIPES)))
def test_every_yaml_is_a_configuration(path, monkeypatch):
    monkeypatch.setenv("ORIGINAL", "a checkout")  # of which exact recipes read prompt and rewards
    config = load_config(path, command=command_in(path))
    if path.parent.name in NAMES:
        # Stages must not write into each other's folders.
        assert config.trainer.output_dir == f"runs/{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_whole(name):
    folder = RECIPES / name
    script, readme = (folder / "run.sh").read_text(), (folder / "README.md").read_text()
    assert os.access(folder / "run.sh", os.X_OK)
    for path in folder.glob("*.yaml"):
        assert f"`{path.name}`" in readme
        stage = path.stem.removeprefix("exact_")
        assert re.search(rf"\b{stage}\b", script), path
        assert (folder / f"{stage}.yaml").is_file()
    for stage in re.findall(r"^stage \w+ (\w+)", script, re.M):
        assert (folder / f"{stage}.yaml").is_file(), stage
    for word in ("**Data**", "|---|"):
        assert word in readme


@pytest.mark.parametrize(("model", "most"), [("3B", 2), ("7B", 4)])
def test_every_stage_fits_few_gpus_and_uses_all_of_a_machine(model, most):
    """By the estimator, with a tenth of the memory left for what it does not count."""
    seen = set()
    for stage in stages(model):
        seen.add(f"{stage.name}.yaml")
        eight = stage.on(8)
        assert eight is not None, stage.name
        # Reward models have ranks of their own, on GPUs that the trainer's do not use.
        held = eight.resources.reward_ranks if named_reward_models(stage.config) else 0
        assert stage.fewest <= most + held, stage.name
        assert eight.resources.ranks == 8 - held, stage.name
        assert eight.rollout.colocated == stage.config.samples, stage.name
    meant = {str(path.relative_to(RECIPES)) for path in YAMLS if path.parent.name in NAMES}
    meant = {name for name in meant if not re.search("^small_|/exact_", name)}
    assert seen == meant | ({"qwen2_5_vl_3b/grpo.yaml"} if model == "3B" else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke(name, tmp_path):
    if name == "small_env":
        pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    run_smoke(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({path.parent.name for path in EXACT}))
def test_smoke_of_the_original(name, tmp_path):
    """Prompt and rewards are the recipe's own, as there is no checkout to read them from."""
    run_smoke(name, tmp_path, "--exact", ORIGINAL="")
    for path in EXACT:
        if path.parent.name == name:
            assert (tmp_path / name / path.stem / "checkpoints/step_000002").is_dir()


@pytest.mark.parametrize("path", EXACT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_exact_recipe_says_where_each_value_was_read_and_what_differs(path):
    assert differences(path)
    settings = path.read_text().partition("resources: auto")[0].splitlines()
    said = [line for line in settings if ":" in line and not line.startswith("#")]
    sourced = [line for line in said if re.search(r"  # .", line)]
    if path.parent.name != "visualprm":  # of which only the labels are published
        assert len(sourced) > 0.5 * len(said), [line for line in said if line not in sourced]


THEIRS: dict[str, dict[str, object]] = {
    "video_r1/rl": {
        "rewards.length_bonus.bonus": 0.2,
        "rewards.length_bonus.min_length": 320,
        "rewards.length_bonus.max_length": 512,
        "rewards.temporal_contrast.shuffled_factor": 0.8,
        "rewards.temporal_contrast.correct_above": 0.1,
        "rollout.top_p": 0.95, "optimizer.max_grad_norm": 5.0, "optimizer.weight_decay": 0.01,
        "data.image.max_pixels": 200704, "data.train_batch_size": 4,
        "model.freeze_vision_tower": False,
    },
    "video_r1/sft": {"data.train_batch_size": 8, "optimizer.max_grad_norm": 5.0},
    "open_r1_video/rl": {"model.path": "Qwen/Qwen2-VL-7B-Instruct", "algorithm.kl.coef": 0.1},
    "r1_onevision/sft": {"model.freeze_vision_tower": False},
    "r1_onevision/rl": {
        "model.freeze_vision_tower": False, "optimizer.scheduler.type": "linear",
        "trainer.total_epochs": 1, "trainer.max_steps": None,
    },
    "vlm_r1_rec/rl": {
        "model.freeze_vision_tower": False, "model.lora": None, "rollout.max_response_length": 2048,
    },
    "lmm_r1/text": {
        "algorithm.advantage.type": "reinforce_pp_baseline", "algorithm.kl.coef": 0.001,
        "data.train_batch_size": 256, "optimizer.scheduler.type": "cosine",
    },
}  # fmt: skip
"""The table in docs/reproduce.md of what the originals' scripts set."""


@pytest.mark.parametrize("stage", THEIRS)
def test_what_the_originals_scripts_set_is_set(stage, monkeypatch):
    monkeypatch.setenv("ORIGINAL", "a checkout")
    recipe, _, name = stage.partition("/")
    lacking = {}
    for kind in ("exact_", ""):
        path = RECIPES / recipe / f"{kind}{name}.yaml"
        ours = load_config(path, command=command_in(path)).model_dump(mode="json")
        lacking[kind] = [key for key, value in THEIRS[stage].items() if at(ours, key) != value]
        rewards = set(ours["rewards"])
        if recipe == "open_r1_video":
            assert len(rewards) == 1  # accuracy alone
        if stage == "r1_onevision/rl":
            assert rewards == ({"accuracy", "format"} if kind else {"math", "format"})
    expected = ["model.path"] if recipe == "open_r1_video" else []
    assert lacking == {"exact_": [], "": expected}


def at(tree, key):
    for name in key.split("."):
        tree = None if tree is None else tree.get(name)
    return tree


def test_the_original_needs_a_checkout():
    finished = subprocess.run(
        [RECIPES / "r1_v_clevr/run.sh", "--exact"],
        env={**os.environ, "ORIGINAL": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 2
    assert "ORIGINAL is not set: the path of a checkout" in finished.stderr
    none = [RECIPES / "text_math/run.sh", "--exact"]
    finished = subprocess.run(none, capture_output=True, text=True, check=False)
    assert (finished.returncode, "has no exact_*.yaml" in finished.stderr) == (2, True)


def test_the_original_s_stages_follow_each_other(tmp_path):
    """``true`` in the place of Python: the data are those that the exact files name."""
    environment = {**os.environ, "PYTHON": "true", "ORIGINAL": str(tmp_path)}
    finished = subprocess.run(
        [RECIPES / "video_r1/run.sh", "--exact", "seed=7"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    first, second, last = (line for line in finished.stdout.splitlines() if line[:7] == "$ mmr1 ")
    assert first == (
        "$ mmr1 sft scripts/recipes/video_r1/exact_sft.yaml "
        "trainer.output_dir=runs/video_r1/exact_sft seed=7 --resume"
    )
    assert second.startswith("$ mmr1 train scripts/recipes/video_r1/exact_rl.yaml ")
    assert "data.train" not in second
    assert "model.path=" in second
    assert last.startswith("$ mmr1 eval runs/video_r1/exact_rl/config.yaml model.path=")
    prompt = f"{tmp_path}/src/eval_bench.py:QUESTION_TEMPLATE + TYPE_TEMPLATE[problem_type]"
    assert f" eval.prompt={prompt} " in last
    assert " rollout.max_response_length=1024 " in last


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family"),
    [("text_math", "qwen3"), ("r1_v_clevr", "qwen3_vl"), ("open_r1_video", "qwen2_vl")],
)
def test_smoke_with_a_model_of_another_family(name, family, tmp_path):
    run_smoke(name, tmp_path, FAMILY=family)
    config = json.loads((tmp_path / name / "model/config.json").read_text())
    assert config["model_type"] == family


@pytest.mark.slow
@pytest.mark.vllm
def test_smoke_with_a_judge(tiny_model, tmp_path):
    """Rounds in which a tiny model behind vLLM's own server compares the answers."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    with vllm_server(tiny_model, tmp_path / "log", "--served-model-name", "tiny") as url:
        run_smoke("rlaif_v", tmp_path, JUDGE=f"{url}/v1", JUDGE_MODEL="tiny")
    summary = json.loads((tmp_path / "rlaif_v/judged/summary.json").read_text())
    assert summary["state"] == "finished"
    assert summary["faults"] == {}


@pytest.mark.slow
@pytest.mark.vllm
def test_demonstrations_by_models_that_are_served(tiny_model, tmp_path):
    """R1-Onevision's three steps by a tiny model behind vLLM's server; what it says is noise."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    rows, data, prompts, model = (tmp_path / n for n in ("rows", "data", "prompts", "model"))
    prompts.mkdir()
    shutil.copytree(tiny_model, model)
    ends = {"eos_token_id": list(range(0, 500, 3))}  # it would seldom end by itself
    (model / "generation_config.json").write_text(json.dumps(ends))
    (prompts / "formal.jinja").write_text("Describe the picture formally. {{ question }}")
    (prompts / "reason.jinja").write_text("{{ meta.formal }}\n{{ question }}")
    (prompts / "judge.jinja").write_text("{{ question }} {{ answer }}: right? {{ reply }}")
    for words in (
        (RECIPES / "sample_rows.py", "r1_v_clevr/train", "r1_v", rows),
        ("-m", "datasets_prep", "convert", "r1_v", "--input", rows, "--output", data),
    ):
        own = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        subprocess.run([sys.executable, *words], check=True, cwd=REPOSITORY, env=own)
    with vllm_server(model, tmp_path / "log", "--served-model-name", "tiny") as url:
        environment = {
            **os.environ, "SERVER": f"{url}/v1", "MODEL": "tiny", "PROMPTS": str(prompts),
            "TOKENS": "200", "KEPT": "meta.verdict and meta.formal",
            "MMR1_DATA": str(Path(sys.executable).with_name("mmr1-data")),
        }  # fmt: skip
        script = [RECIPES / "r1_onevision/data.sh", data / "records.jsonl", tmp_path / "out"]
        subprocess.run(script, env=environment, check=True)
    made = (tmp_path / "out/demonstrations.jsonl").read_text().splitlines()
    assert made
    assert all(json.loads(line)["messages"][-1]["role"] == "assistant" for line in made)


@pytest.mark.parametrize(
    ("name", "model"),
    [("text_math", "Qwen/Qwen3-4B"), ("r1_v_clevr", "Qwen/Qwen3-VL-4B-Instruct")],
)
def test_a_recipe_takes_another_model(name, model):
    """``true`` in the place of Python: the script prints each command that it would run."""
    finished = subprocess.run(
        [RECIPES / name / "run.sh"],
        env={**os.environ, "PYTHON": "true", "MODEL": model},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (stage,) = [line for line in finished.stdout.splitlines() if line.startswith("$ mmr1 train")]
    assert f"model.path={model}" in stage.split()


@pytest.mark.parametrize("name", ["r1_onevision", "rlaif_v", "visualprm", "iterative_grpo"])
def test_a_stage_gets_the_overrides_that_its_command_reads(name):
    """One of each section that not every command reads: the other stages would refuse it."""
    given = {
        "rollout": "rollout.n=3", "rewards": "rewards.format.weight=0", "eval": "eval.limit=5",
        "scoring": "scoring.timeout_s=9",
        "algorithm": "algorithm.ppo_epochs=2", "dpo": "dpo.loss.beta=0.2",
        "rm": "rm.type=outcome", "iterative_grpo": "iterative_grpo.rounds=3",
        "sft": "sft.completion_only_loss=false",
    }  # fmt: skip
    assert set(given) == set(optional_sections()) - {"environment"}
    finished = subprocess.run(
        [RECIPES / name / "run.sh", *given.values(), "seed=7"],
        env={**os.environ, "PYTHON": "true", "JUDGE": "http://judge"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    lines = [line.split() for line in finished.stdout.splitlines() if line[:7] == "$ mmr1 "]
    assert all(("--resume" in line) == (line[2] != "eval") for line in lines)
    stages = [[word for word in line[2:] if word != "--resume"] for line in lines]
    for command, path, *overrides in (stage for stage in stages if stage[0] != "eval"):
        config = load_config(REPOSITORY / path, [o for o in overrides if o[-1] != "="], command)
        assert "seed=7" in overrides
        read = {override.partition(".")[0] for override in overrides} & set(given)
        assert read == set(config.sections) & set(given)
    assert stages


def run_smoke(name, tmp_path, *options, **variables):
    environment = {
        **os.environ,
        **variables,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
        "SMOKE_OUT": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    finished = subprocess.run(
        [RECIPES / name / "run.sh", "--smoke", *options],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert list((tmp_path / name).glob("*/checkpoints/step_000002/config.json"))
    evaluated = "\nevaluate " in (RECIPES / name / "run.sh").read_text()
    assert bool(list((tmp_path / name).glob("*eval/**/result.json"))) >= evaluated


def test_deepeyes_functions_see_the_pictures_that_tools_showed(tmp_path):
    """As decoded there: its functions count the marks of pictures in the whole conversation."""
    package = tmp_path / "verl/utils/reward_score"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def _default_compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    from . import rules\n"
        "    return rules.of[data_source](solution_str, ground_truth, extra_info['question'])\n"
    )
    (package / "rules.py").write_text(
        "def vstar(text, gold, question):\n"
        "    shown = text.count('<|vision_start|><|image_pad|>')\n"
        "    right = text.split('<answer>')[-1].split('</answer>')[0] == gold\n"
        "    return (0.8 + 1.2 * (shown > 0)) * right * (question == 'Which?')\n"
        "of = {'vstar': vstar}\n"
    )
    call = {"role": "assistant", "content": "<tool_call>zoom</tool_call>"}
    said = {"role": "assistant", "content": "<answer>red</answer>"}
    conversations = [
        (said,), (call, {"role": "tool", "content": "here", "images": ["digest"]}, said),
        (call, {"role": "tool", "content": "Error: no"}, said),
    ]  # fmt: skip
    meta = {"data_source": "vstar", "extra_info": {"question": "Which?"}}
    items = [
        RewardItem("", Sample("s", (), "red", meta=meta), messages=turns) for turns in conversations
    ]
    use = {"type": f"{RECIPES}/deepeyes/original.py:score", "original": str(tmp_path)}
    with build_composite_reward(
        read_rewards({"score": {**use, "sandbox": None}}), ScoringConfig(timeout_s=60.0)
    ) as score:
        assert [reward.value for reward in score.score(items)] == [0.8, 2.0, 0.8]


def test_a_wrong_option_is_told():
    script = RECIPES / NAMES[0] / "run.sh"
    finished = subprocess.run([script, "--smok"], capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert "usage:" in finished.stderr
