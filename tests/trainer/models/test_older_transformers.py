"""Checkpoints in transformers 4.57, which has an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from mmr1.config import ModelConfig
from mmr1.trainer.models.hub_files import save_pretrained, with_older_keys
from mmr1.trainer.models.loading import load_model
from mmr1.trainer.models.weights import model_weights
from mmr1.vision.families.tiny import new_model

PACKAGES = ("transformers==4.57.*", f"torch=={torch.__version__.split('+')[0]}", "numpy", "pillow")

READ = """
import sys
import torch, transformers
from pathlib import Path
folder = Path(sys.argv[1])
given = torch.load(folder / "logprobs.pt")
model, report = getattr(transformers, given["auto"]).from_pretrained(
    folder, dtype=torch.float32, output_loading_info=True
)
assert transformers.__version__.startswith("4.57")
assert not report["missing_keys"] and not report["unexpected_keys"], report
with torch.no_grad():
    logprobs = model(input_ids=given["ids"]).logits.log_softmax(-1)
print(float((logprobs - given["logprobs"]).abs().max()))
"""

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("older")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    install = [folder / "bin/pip", "install", "-q", *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        pytest.skip(f"transformers 4.57 cannot be installed here: {done.stderr[-200:]}")
    return folder / "bin/python"


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("qwen3", {"rope_theta": 1e6}),
        ("llama", LLAMA3),
        ("qwen2_vl", {"rope_theta": 1e6}),
        ("qwen2_5_vl", {"rope_theta": 1e6}),
        ("qwen3_vl", {"rope_theta": 5e6}),
    ],
)
def test_transformers_4_reads_the_same_logprobs(python, tmp_path, family, rope, tied):
    new_model(tmp_path / "new", family=family)
    config = AutoConfig.from_pretrained(tmp_path / "new")
    text = config.get_text_config()
    text.rope_parameters = {**text.rope_parameters, **rope}
    config.tie_word_embeddings = text.tie_word_embeddings = tied
    sees = hasattr(config, "vision_config")
    auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    torch.manual_seed(1)
    auto.from_config(config).save_pretrained(tmp_path / "new")
    model = load_model(ModelConfig(path=str(tmp_path / "new"), dtype="float32", sharing="auto"))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_pretrained(model, folder, model_weights(model), {})
    ids = torch.arange(20, 90)[None]
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits.log_softmax(-1)
    written = {"ids": ids, "logprobs": logprobs, "auto": auto.__name__}
    torch.save(written, folder / "logprobs.pt")
    command = [python, "-c", READ, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 1e-5


@pytest.mark.parametrize("rope", [{"rope_type": "axial", "rope_theta": 5.0}, {"other": {"a": 1}}])
def test_unknown_rotary_embedding_is_named(rope):
    settings = {"model_type": "new", "rope_parameters": rope}
    written, unread = with_older_keys({"model_type": "vl", "text_config": settings})
    assert unread == ["rotary embedding of new"] or "rope_theta" in written["text_config"]


def test_gemma_layout_is_that_of_transformers_4():
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    written, unread = with_older_keys({"model_type": "gemma3_text", "rope_parameters": rope})
    assert not unread
    assert (written["rope_theta"], written["rope_local_base_freq"]) == (1e6, 1e4)
    assert written["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
