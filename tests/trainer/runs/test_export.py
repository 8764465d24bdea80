"""What is exported loads elsewhere and tells how it was made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmr1.config import Config
from mmr1.trainer.models.scalar_model import HEAD_FILE
from mmr1.trainer.runs.checkpoint import DamagedCheckpointError
from mmr1.trainer.runs.export import _pipeline_tag, export
from mmr1.trainer.sft import run_sft


@pytest.fixture(scope="module")
def checkpoint(tiny_model, digits, tmp_path_factory) -> Path:
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32", "lora": {"rank": 2}},
        data={"train": str(digits / "sft.jsonl"), "train_batch_size": 4},
        optimizer={"lr": 1e-2, "scheduler": {"warmup_steps": 0}},
        trainer={"max_steps": 2, "output_dir": str(tmp_path_factory.mktemp("sft") / "run")},
    )
    return run_sft(config)


def test_merged_and_as_an_adapter_it_is_the_same_model(checkpoint, tiny_model, tmp_path, mmr1):
    code, out, _ = mmr1("export", checkpoint, tmp_path / "merged")
    assert (code, out.split()[0]) == (0, "written:")
    export(checkpoint, tmp_path / "adapter", adapter=True)
    merged = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged")
    start = AutoModelForImageTextToText.from_pretrained(tiny_model)
    adapted = PeftModel.from_pretrained(start, tmp_path / "adapter")
    processor = AutoProcessor.from_pretrained(tmp_path / "merged")
    batch = processor(text=["<|im_start|>user\nHi<|im_end|>\n"], return_tensors="pt")
    torch.testing.assert_close(merged(**batch).logits, adapted(**batch).logits)
    assert not (tmp_path / "merged/training").exists()


def test_the_card_tells_model_data_and_metrics(checkpoint, tiny_model, tmp_path):
    card = (export(checkpoint, tmp_path / "out") / "README.md").read_text()
    for fact in (f"weights of `{tiny_model}`", "sft.jsonl", "step 2 of 2", "| loss |", "0.01"):
        assert fact in card
    assert ModelCard(card).data.pipeline_tag == "image-text-to-text"
    assert "base_model" not in ModelCard(card).data.to_dict()  # a folder is not a model of the Hub
    assert (tmp_path / "out/mmr1_config.yaml").is_file()


def test_a_model_of_text_is_for_text(checkpoint, tmp_path):
    shapes, whole = tmp_path / "config.json", json.loads((checkpoint / "config.json").read_text())
    shapes.write_text(json.dumps({k: v for k, v in whole.items() if k != "vision_config"}))
    assert _pipeline_tag(tmp_path) == "text-generation"
    (tmp_path / HEAD_FILE).touch()  # a reward model generates nothing
    assert _pipeline_tag(tmp_path) is None


def test_the_card_names_a_base_model_of_the_hub(checkpoint, tiny_model, tmp_path):
    written = checkpoint.parent.parent / "config.yaml"
    before = written.read_text()
    written.write_text(before.replace(str(tiny_model), "Qwen/Qwen2.5-VL-3B-Instruct"))
    card = ModelCard.load(export(checkpoint, tmp_path / "out", adapter=True) / "README.md")
    written.write_text(before)
    assert card.data.base_model == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert (card.data.library_name, card.data.pipeline_tag) == ("peft", "image-text-to-text")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--push-to-hub", "a name"], "--push-to-hub a name: Repo id must"),
        (["--push-to-hub", "me/my/model"], "in the form 'repo_name' or 'namespace/repo_name'"),
        (["--private"], "name it in --push-to-hub"),
    ],
)
def test_a_repository_is_checked_before_anything_is_written(
    checkpoint, tmp_path, mmr1, options, said
):
    code, _, errors = mmr1("export", checkpoint, tmp_path / "out", *options)
    assert code != 0
    assert said in " ".join(errors.split())
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_pushed_is_still_written(checkpoint, tmp_path):
    """Nobody listens on port 9 of this machine."""
    command = [sys.executable, "-m", "mmr1", "export", str(checkpoint), str(tmp_path / "out")]
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_none"}
    finished = subprocess.run(
        [*command, "--push-to-hub", "me/model"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode != 0
    said = " ".join(finished.stderr.split())
    assert "was not pushed to me/model" in said
    assert "hf upload me/model" in said
    assert (tmp_path / "out/README.md").is_file()


def test_what_cannot_be_exported_is_named(checkpoint, tiny_model, tmp_path):
    with pytest.raises(ValueError, match="is not a checkpoint of a run; name one like"):
        export(tiny_model, tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="already exists"):
        export(checkpoint, tmp_path / "there")
    weights = checkpoint / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedCheckpointError, match=r"model.safetensors is not what was written"):
        export(checkpoint, tmp_path / "out")
    weights.write_bytes(whole)


def test_the_copy_of_the_configuration_has_no_credentials(checkpoint, tmp_path, monkeypatch):
    written = checkpoint.parent.parent / "config.yaml"
    before = written.read_text()
    monkeypatch.delenv("TRACKER", raising=False)  # an export needs no credential
    secret = "project_name: 'http://me:hunter2@h', run_name: '${oc.env:TRACKER}'"
    tracking = f"  tracking: {{report_to: [tensorboard], {secret}}}\n"
    written.write_text(before.replace("  tracking: null\n", tracking))
    assert "hunter2" in written.read_text()
    copy = export(checkpoint, tmp_path / "out") / "mmr1_config.yaml"
    assert "http://***@h" in copy.read_text()
    assert "run_name: ${oc.env:TRACKER}" in copy.read_text()
    assert copy.stat().st_mode & 0o777 == 0o600
    for file in (tmp_path / "out").glob("*.md"):
        assert "hunter2" not in file.read_text()
    written.write_text(before)
