"""``mmr1 check``: what it finds before a run, and what it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForImageTextToText

from mmr1.config import Config
from mmr1.evaluation.check import write_tiny

MINE = """
def unpaid(completion, answer, **sample):
    return float(completion.endswith(f"ANSWER: {answer}"))

def constant(completion, **sample):
    return 0.5
"""


@pytest.fixture
def config(tiny_model, digits, tmp_path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model: {{path: {tiny_model}}}\n"
        f"data: {{train: {digits}/rl.jsonl, prompt_template: think_answer}}\n"
        "rewards: {format: {weight: 0.2}, auto: {}}\n"
        "rollout: {n: 8, max_response_length: 512}\n"
        f"trainer: {{max_steps: 100, output_dir: {tmp_path}/never}}\n"
    )
    return path


def test_a_run_without_problems(config, tmp_path, mmr1):
    code, output, message = mmr1("check", config, "--steps", 2, "--output", tmp_path / "small")
    assert code == 0, message
    assert output.count("pays 16 of 16 gold answers, 0 of 16 answers without sense") == 2
    assert "nothing found" in output
    steps = (tmp_path / "small/run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in steps] == [1, 2]
    assert not (tmp_path / "never").exists()


def test_what_the_run_would_meet(config, digits, tmp_path, mmr1):
    rows = [json.loads(line) for line in (digits / "rl.jsonl").read_text().splitlines()[:10]]
    shutil.copytree(digits / "images", tmp_path / "images")
    rows[7]["images"] = ["images/missing.png"]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, output, _ = mmr1(
        *("check", config, "--steps", 1, "--output", tmp_path / "small"),
        f"data.train={tmp_path}/rows.jsonl",
        f"rewards.unpaid={{type: {tmp_path}/mine.py:unpaid}}",
        f"rewards.constant={{type: {tmp_path}/mine.py:constant}}",
    )  # fmt: skip
    assert code == 1
    for found in (
        "10.0% of the records cannot be used, and data.max_bad_fraction is 0",
        "rewards.unpaid pays none of 9 gold answers",
        "rewards.constant gives 0.5 to everything",
    ):
        assert f"problem: {found}" in output


def test_a_folder_with_files_is_kept(config, tmp_path, mmr1):
    code, _, message = mmr1("check", config, "--steps", 1, "--output", tmp_path)
    assert code == 2
    assert "not empty; name another --output" in message


def test_the_tiny_model_reads_as_its_original_and_needs_no_weights(tiny_model, tmp_path):
    """Of a model with weights that are not there, and 1.8B parameters."""
    original = tmp_path / "large"
    shutil.copytree(tiny_model, original, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = AutoConfig.from_pretrained(original)
    text, tower = settings.text_config, settings.vision_config
    text.hidden_size, text.num_hidden_layers, text.intermediate_size = 2048, 36, 11008
    text.layer_types = ["full_attention"] * 36
    text.num_attention_heads, text.num_key_value_heads = 16, 2
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [16, 24, 24]}
    tower.hidden_size, tower.depth, tower.num_heads, tower.out_hidden_size = 1280, 32, 16, 2048
    settings.save_pretrained(original)
    parameters = write_tiny(Config(model={"path": str(original)}), tmp_path / "small")
    assert parameters < 1_000_000
    small = AutoModelForImageTextToText.from_pretrained(tmp_path / "small")
    assert small.num_parameters() == parameters
    for name in ("tokenizer.json", "processor_config.json", "chat_template.jinja"):
        assert (tmp_path / "small" / name).read_bytes() == (original / name).read_bytes()
    for value in ("patch_size", "spatial_merge_size", "temporal_patch_size"):
        assert getattr(small.config.vision_config, value) == getattr(tower, value)
