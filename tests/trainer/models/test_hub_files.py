"""The model's files are those of ``save_pretrained``, and are written weight by weight."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
)

from mmr1.config import ModelConfig, OptimizerConfig
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.models import hub_files
from mmr1.trainer.models.hub_files import save_pretrained
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.state import model_snapshot
from mmr1.trainer.models.weights import model_weights
from tests.trainer.distributed.gloo import on_two_ranks
from tests.vision.families.general_models import MODELS, new_model
from tests.vision.families.tiny_family import FAMILIES

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
CONVERTED = {
    # Files have each expert by itself, and gate and up projections apart: one becomes many.
    "mixtral": (AutoModelForCausalLM, {"num_local_experts": 4}),
    "qwen3_moe": (AutoModelForCausalLM, {"num_experts": 4, "moe_intermediate_size": 24}),
    # Files have both in one matrix: two become one.
    "dinov2": (AutoModel, {"use_swiglu_ffn": True}),
}


def loaded(name: str, folder: Path) -> Any:
    if name in CONVERTED:
        auto_class, settings = CONVERTED[name]
        torch.manual_seed(0)
        auto_class.from_config(AutoConfig.for_model(name, **SMALL, **settings)).save_pretrained(
            folder
        )
        return auto_class.from_pretrained(folder, dtype="auto")
    if name in MODELS:
        new_model(name, folder)
        return AutoModelForImageTextToText.from_pretrained(folder, dtype="auto")
    return FAMILIES[name].model()


@pytest.mark.parametrize("size", ["50GB", "100KB"])
@pytest.mark.parametrize("name", [*CONVERTED, *MODELS, *FAMILIES])
def test_files_are_those_of_transformers(name, size, monkeypatch, tmp_path):
    if name == "qwen3_vl_moe":
        pytest.skip("files have the hub's layout; see tests/vision/families/test_experts.py")
    monkeypatch.setattr(hub_files, "_LARGEST", size)
    model = loaded(name, tmp_path / "model")
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    save_pretrained(model, tmp_path / "ours", model_weights(model), {})
    model.save_pretrained(tmp_path / "theirs", max_shard_size=size)
    ours, theirs = stored(tmp_path / "ours"), stored(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    for weight, tensor in ours.items():
        assert tensor.dtype == theirs[weight].dtype
        assert torch.equal(tensor, theirs[weight]), weight
    for file in (tmp_path / "theirs").iterdir():
        if file.name == "config.json":  # with the keys of transformers 4 besides
            settings = json.loads(file.read_text())
            assert (
                json.loads((tmp_path / "ours" / file.name).read_text())
                == (hub_files.with_older_keys(settings)[0])
            )
            read = [AutoConfig.from_pretrained(tmp_path / n).to_dict() for n in ("ours", "theirs")]
            if "text_config" in read[1]:  # transformers 5 keeps the older keys beside its own
                known = read[1]["text_config"].keys() - {"tie_word_embeddings"}
                for config in read:
                    config["text_config"] = {key: config["text_config"][key] for key in known}
            assert read[0] | {"_name_or_path": ""} == read[1] | {"_name_or_path": ""}
        elif not file.name.startswith("model"):
            assert (tmp_path / "ours" / file.name).read_bytes() == file.read_bytes()
    again = type(model).from_pretrained(tmp_path / "ours", dtype="auto")
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in model.state_dict().items())


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """All weights; each is in the file that the index names, if there is one."""
    files = {path.name: load_file(path) for path in folder.glob("*.safetensors")}
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        (weights,) = files.values()
        return weights
    places = json.loads(index.read_text())["weight_map"]
    assert sum(map(len, files.values())) == len(places)
    return {name: files[file][name] for name, file in places.items()}


PEAK = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM, Qwen2Config
from mmr1.vision.families.loading import unwrapped
from mmr1.config import NewLoraConfig
from mmr1.trainer.models.hub_files import save_pretrained
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.weights import model_adapters, model_weights

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

def saved(name, **sizes):
    config = Qwen2Config(
        hidden_size=1024, intermediate_size=4096, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=8192, tie_word_embeddings=True, dtype="float32", **sizes
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if sys.argv[2] == "adapters":
        model = add_adapters(model, NewLoraConfig(rank=2), False)
    (folder := Path(sys.argv[1]) / name).mkdir()
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    save_pretrained(model, folder, model_weights(model), model_adapters(model))
    return peak() - before

saved("warm", num_hidden_layers=1)
print(saved("large", num_hidden_layers=6))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts the bytes")
@pytest.mark.parametrize("kind", ["plain", pytest.param("adapters", marks=pytest.mark.slow)])
def test_saving_takes_one_weight_in_main_memory(kind, tmp_path):
    """Of 420 MiB; the largest weight has 32, and merging one takes three times its size.

    What the allocator keeps beside that differs from run to run.
    """
    command = [sys.executable, "-c", PEAK, str(tmp_path), kind]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(output.splitlines()[-1]) < 192 << 20


def _saved_to_a_full_disk(rank: int, mesh: Any, path: Path, out: Path) -> None:
    model = fsdp.load(ModelConfig(path=str(path), dtype="bfloat16"), True, mesh=mesh)
    optimizer = Optimizer(model, OptimizerConfig(), 10)
    processor, ranks = AutoProcessor.from_pretrained(path), fsdp.DistributedProcessGroup(rank, 2)
    write = model_snapshot(model, processor, optimizer, process_group=ranks)
    if rank == 0:
        with pytest.raises(OSError, match="No space left") as caught:
            write(out)
        assert caught.value.errno == errno.ENOSPC
    else:
        write(out)
    dist.barrier()
    if rank == 0:
        (out / "model.safetensors").unlink()
        (out / "again").mkdir()
    write(out / "again")
    dist.barrier()
    whole = load_file(out / "again/model.safetensors")
    assert whole.keys() == load_file(path / "model.safetensors").keys()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_where_the_disk_of_rank_0_is_full_the_others_are_not_kept_waiting(tiny_model, tmp_path):
    (tmp_path / "model.safetensors").symlink_to("/dev/full")
    on_two_ranks(_saved_to_a_full_disk, tiny_model, tmp_path)
