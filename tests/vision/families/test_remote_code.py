"""Code of a model's repository is never run, and nobody is asked whether to run it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoProcessor

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
        from_pretrained(auto_class, str(folder))
    assert not mark.exists()


def test_a_run_is_refused_with_one_line(mark, tiny_model, digits, tmp_path, mmr1):
    file, _, settings = CASES["configuration"]
    folder = with_code(tiny_model, tmp_path / "model", mark, file, **settings)
    config = tmp_path / "run.yaml"
    config.write_text(
        json.dumps(
            {
                "model": {"path": str(folder)},
                "data": {"train": str(digits / "sft.jsonl")},
                "trainer": {"max_steps": 1, "output_dir": str(tmp_path / "run")},
            }
        )
    )
    code, _, said = mmr1("sft", config)
    assert code == 2
    assert "which is never run" in said
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
