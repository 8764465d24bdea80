"""``mmr1 doctor --estimate``."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ("null", "data.train is not set"),
        ("not/yet.jsonl", "not/yet.jsonl: no such file"),
        ("{/not/yet: 1}", "/not/yet: no such file or folder"),
        ("nobody/has-this@train", "'nobody/has-this' is neither a file nor a folder nor a dataset"),
    ],
)
def test_without_the_data_it_says_what_it_assumes(
    tiny_model, tmp_path, mmr1, monkeypatch, train, reason
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    path = tmp_path / "run.yaml"
    lengths = "{max_prompt_length: 500, max_response_length: 100}"
    path.write_text(
        f"model: {{path: {tiny_model}}}\ndata: {{train: {train}}}\nrollout: {lengths}\n"
    )
    code, out, err = mmr1("doctor", "--estimate", path, "--memory", "8")
    said = " ".join(out.split())
    assert code == 0, err
    assert "prompt 500 tokens (500 of them vision), completion 100" in said
    assert "assumed: the longest prompts that rollout.max_prompt_length=500 allows" in said
    assert reason in said
    given = ("--prompt-tokens", "40", "--vision-tokens", "30")
    code, out, _ = mmr1("doctor", "--estimate", path, "--memory", "8", *given)
    assert "assumed" not in out
    assert "prompt 40 tokens (30 of them vision)" in " ".join(out.split())


def test_data_that_are_there_and_broken_are_an_error(tiny_model, tmp_path, mmr1):
    (tmp_path / "broken.jsonl").write_text("{\n")
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{path: {tiny_model}}}\ndata: {{train: {tmp_path}/broken.jsonl}}\n")
    code, out, err = mmr1("doctor", "--estimate", path, "--memory", "8")
    assert code == 2
    assert "broken.jsonl" in err.replace("\n", "")
    assert "assumed" not in out


def test_the_command_prints_a_table(digits, tiny_model, tmp_path, mmr1):
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{path: {tiny_model}}}\ndata: {{train: {digits / 'rl.jsonl'}}}\n")
    code, out, _ = mmr1("doctor", "--estimate", path, "--memory", "8")
    assert code == 0
    assert "AdamW moments" in out
    assert "4 of them vision" in out
    code, out, _ = mmr1("doctor", "--estimate", path, "--memory", "0.01")
    assert code == 1
    assert "it will not fit ->" in out


@pytest.mark.parametrize(
    ("section", "samples"),
    [
        ("sft: {}", False),
        ("algorithm: {name: grpo}", True),
    ],
)
def test_a_run_on_records_has_no_engine(digits, tiny_model, tmp_path, mmr1, section, samples):
    path = tmp_path / "run.yaml"
    data = digits / "rl.jsonl"
    path.write_text(f"model: {{path: {tiny_model}}}\ndata: {{train: {data}}}\n{section}\n")
    code, out, err = mmr1("doctor", "--estimate", path, "--memory", "8", "--gpus", "2")
    assert code == 0, err
    assert ("engine" in out) == samples
    assert ("all 2 GPUs learn" in out) == (not samples)


def test_a_run_on_records_has_its_device_to_itself(digits, tiny_model, tmp_path, mmr1):
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model: {{path: {tiny_model}}}\ndata: {{train: {digits / 'rl.jsonl'}}}\nsft: {{}}\n"
    )
    for memory, fits in (("8", True), ("0.01", False)):
        code, out, _ = mmr1("doctor", "--estimate", path, "--memory", memory)
        assert code == (not fits)
        assert "rollout.engine" not in out
