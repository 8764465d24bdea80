"""Code of a model's repository is run only where ``model.trust_remote_code`` says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from mmr1.config import Config
from mmr1.rollout.build_vllm import build_vllm_engine
from mmr1.rollout.engine_process import EngineProcess
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.model_path import from_pretrained

CODE = "from pathlib import Path\nPath({mark!r}).write_text('run')\n"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the code would leave a mark. Whoever is asked says yes."""
    monkeypatch.setattr("builtins.input", lambda question="": "y")
    return tmp_path / "mark"


def with_code(model: Path, folder: Path, mark: Path, file: str, **settings: object) -> Path:
    shutil.copytree(model, folder)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **settings}))
    (folder / "code.py").write_text(CODE.format(mark=str(mark)))
    return folder


CASES = {
    "configuration": (
        "config.json",
        AutoConfig,
        {"model_type": "alien", "vision_config": {}, "auto_map": {"AutoConfig": "code.Alien"}},
    ),
    "processor": (
        "processor_config.json",
        AutoProcessor,
        {"processor_class": "Alien", "auto_map": {"AutoProcessor": "code.Alien"}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_code_is_refused_without_a_question(case, mark, tiny_model, tmp_path):
    file, auto_class, settings = CASES[case]
    folder = with_code(tiny_model, tmp_path / "model", mark, file, **settings)
    with pytest.raises(ValueError, match=r"needs Python code of its own repository"):
        from_pretrained(auto_class, str(folder), False)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("config.json", {"auto_map": {"AutoConfig": "code.Alien"}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["code.Alien", None]}}),
    ],
)
def test_a_type_that_transformers_has_needs_no_code(file, settings, mark, tiny_model, tmp_path):
    """As models of the hub bring it along for older versions."""
    folder = with_code(tiny_model, tmp_path / "model", mark, file, **settings)
    assert load_family(str(folder)) is not None
    assert not mark.exists()


ALIEN = '''
from pathlib import Path

from transformers import (
    Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor, Qwen2Tokenizer
)

with open({mark!r}, "a") as file:
    file.write(Path(__file__).name + "\\n")


class AlienConfig(Qwen2_5_VLConfig):
    model_type = "alien_vl"


class AlienModel(Qwen2_5_VLForConditionalGeneration):
    config_class = AlienConfig


class AlienProcessor(Qwen2_5_VLProcessor):
    """Reads no more than its parent."""
'''


@pytest.fixture
def alien(mark: Path, tiny_model: Path, tmp_path: Path) -> Path:
    """A model whose type only its own code knows: configuration, weights and processor."""
    folder = tmp_path / "alien"
    shutil.copytree(tiny_model, folder)
    classes = {
        "config.json": {
            "model_type": "alien_vl",
            "architectures": ["AlienModel"],
            "auto_map": {
                "AutoConfig": "alien.AlienConfig",
                "AutoModelForImageTextToText": "alien.AlienModel",
            },
        },
        "processor_config.json": {
            "processor_class": "AlienProcessor",
            "auto_map": {"AutoProcessor": "alien.AlienProcessor"},
        },
    }
    for file, settings in classes.items():
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**content, **settings}))
    (folder / "alien.py").write_text(ALIEN.format(mark=str(mark)))
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForImageTextToText.from_config(config, trust_remote_code=True)
    model.save_pretrained(folder)  # its weights have the names of its own class
    mark.unlink()
    return folder


def configured(model: Path, data: Path, folder: Path, **sections: Any) -> Path:
    tree = {
        "model": {"path": str(model), "dtype": "float32"},
        "data": {
            "train": str(data),
            "train_batch_size": 2,
            "num_workers": 1,
            "media_root": str(data.parent),
        },
        "trainer": {"max_steps": 1, "output_dir": str(folder / "run")},
        **sections,
    }
    config = folder / "run.yaml"
    config.write_text(json.dumps(tree))
    return config


def test_a_run_is_refused_with_one_line(alien, mark, digits, tmp_path, mmr1):
    code, _, said = mmr1("sft", configured(alien, digits / "sft.jsonl", tmp_path))
    assert code == 2
    assert "set model.trust_remote_code=true" in said
    assert not mark.exists()


TRUSTED = "model.trust_remote_code=true"
SHORT = ("rollout.max_response_length=4", "rollout.engine=hf")


@pytest.mark.slow
def test_commands_run_trusted_code(alien, mark, digits, tmp_path, mmr1):
    """The checkpoint and the exported model have it beside them, and need the key again."""
    config = configured(alien, digits / "sft.jsonl", tmp_path)
    code, _, said = mmr1("sft", config, TRUSTED)
    assert code == 0, said
    assert mark.read_text().startswith("alien.py\n")
    exported = tmp_path / "exported"
    code, _, said = mmr1("export", tmp_path / "run/checkpoints/step_000001", exported)
    assert code == 0, said
    assert (exported / "alien.py").is_file()
    assert json.loads((exported / "config.json").read_text())["model_type"] == "alien_vl"
    (tmp_path / "next").mkdir()
    sections = {"rewards": {"digits": {"type": "exact"}}, "rollout": {"n": 2}}
    config = configured(exported, digits / "rl.jsonl", tmp_path / "next", **sections)
    held_out = tmp_path / "eval.jsonl"
    held_out.write_text("".join((digits / "eval.jsonl").open().readlines()[:2]))
    for command in (
        ("train", config),
        ("eval", config, f"eval.data={held_out}"),
        ("doctor", "--estimate", config),
    ):
        code, _, said = mmr1(*command, *SHORT)
        assert "set model.trust_remote_code=true" in said, command
        code, out, said = mmr1(*command, TRUSTED, *SHORT)
        assert code == 0, (command, out, said)


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_runs_trusted_code(mark, tiny_model, tmp_path):
    """vLLM has a class of its own for the model, and reads the configuration by the model's."""
    settings = {"auto_map": {"AutoConfig": "alien.AlienConfig"}}
    folder = with_code(tiny_model, tmp_path / "model", mark, "config.json", **settings)
    known = ALIEN.replace('    model_type = "alien_vl"', "    pass")
    (folder / "alien.py").write_text(known.format(mark=str(mark)))
    for trusted in (False, True):
        config = Config.model_validate(
            {
                "model": {"path": str(folder), "dtype": "float32", "trust_remote_code": trusted},
                "rollout": {"engine": {"type": "vllm"}, "max_prompt_length": 64},
            }
        )
        process = EngineProcess(
            build_vllm_engine, (config,), {}.__getitem__, tmp_path / f"{trusted}.log", 1, 600
        )
        process.close()
        assert mark.exists() is trusted


def test_the_argument_of_vllm_is_not_given_beside_the_key():
    engine = {"type": "vllm", "engine_kwargs": {"trust_remote_code": True}}
    with pytest.raises(ValueError, match=r"trust_remote_code: .* sets it; leave it out"):
        Config.model_validate({"rollout": {"engine": engine}})
