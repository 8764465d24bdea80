"""The seam between mmr1 and its model families: nobody outside them names one; plugins work."""

from __future__ import annotations

import ast
import json
import re
from importlib.metadata import entry_points as points
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from mmr1 import registry
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.scores import completion_scores
from mmr1.vision.families.loading import (
    architecture_named,
    find_architecture,
    load_family,
)
from mmr1.vision.families.qwen_vl.reading import expand_placeholders, expanded_spans
from mmr1.vision.families.registry import FAMILIES
from mmr1.vision.families.tiny import new_model
from tests.paths import REPOSITORY
from tests.trainer.tiny_groups import group, image, video
from tests.trainer.tiny_groups import new_model as groups_model

PACKAGE = "mmr1.vision.families"
FOLDER = REPOSITORY / "mmr1/vision/families"
OUTSIDE = [p for p in sorted(REPOSITORY.glob("mmr1/**/*.py")) if not p.is_relative_to(FOLDER)]
OWN_MODULES = [f"{PACKAGE}.{p.name}" for p in FOLDER.iterdir() if (p / "__init__.py").exists()]

TOY = """
class Toy:
    presets = ("small",)

    def load_family(self, path, config, chat, trust_remote_code, **video_options):
        return path, config.model_type, video_options

    def new_model(self, output, preset, seed, corpus=None):
        output.mkdir()
        (output / "config.json").write_text('{"model_type": "toy_vl"}')
        return 7


from transformers import AutoConfig, PretrainedConfig


class ToyConfig(PretrainedConfig):
    model_type = "toy_vl"


AutoConfig.register("toy_vl", ToyConfig)
TOY = Toy()
"""


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_no_module_outside_the_families_knows_one():
    assert OWN_MODULES
    assert len(OUTSIDE) > 100
    # Not "Qwen2.5" in a sentence: a family's name is its model_type, as a whole word.
    names = re.compile(rf"\b({'|'.join(FAMILIES.builtin)})\b(?!\.\d|-)")
    for path in OUTSIDE:
        assert not (found := names.search(path.read_text().lower())), (path, found)
        for module in imported_modules(path):
            assert not any(f"{module}.".startswith(f"{own}.") for own in OWN_MODULES), path


@pytest.fixture
def plugin(tmp_path, monkeypatch) -> None:
    """An installed distribution with a family, as pip would leave it."""
    (tmp_path / "toy_family.py").write_text(TOY)
    info = tmp_path / "toy_family-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-family\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mmr1.families]\ntoy_vl = toy_family:TOY\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plugin")
def test_a_plugins_family_is_found_by_the_models_type(tmp_path):
    assert new_model(tmp_path / "model", "small", family="toy_vl") == 7
    path = str(tmp_path / "model")
    assert load_family(path, fps=1.0) == (path, "toy_vl", {"fps": 1.0})
    assert find_architecture(path) is architecture_named("toy_family:TOY")
    with pytest.raises(ValueError, match="unknown preset 'huge'; known: small"):
        new_model(tmp_path / "other", "huge", family="toy_vl")


def test_a_forward_does_not_look_through_the_installed_packages(monkeypatch):
    model, groups = groups_model(), [group([image(56, 56, 0)], 6, [4, 9], 0)]
    looked = []
    monkeypatch.setattr(registry, "entry_points", lambda **by: looked.append(by) or points(**by))
    completion_scores(model, groups, Distribution(0.7))
    before = len(looked)
    completion_scores(model, groups, Distribution(0.7))
    assert before <= 1
    assert len(looked) == before


@pytest.mark.usefixtures("plugin")
def test_an_unknown_type_is_refused_with_the_nearest_one(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "toy_v1"}))
    with pytest.raises(ValueError, match=r"a\.path '.*' is a 'toy_v1' model .*mean 'toy_vl'"):
        find_architecture(str(tmp_path), "a.path")
    with pytest.raises(ValueError, match=r"unknown model family 'qwen2_5_v'.*mean 'qwen2_5_vl'"):
        new_model(tmp_path / "model", family="qwen2_5_v")


def test_the_command_line_makes_a_model_of_a_named_family(mmr1, tmp_path):
    code, out, _ = mmr1("model", "new", "--family", "qwen2_5_vl", tmp_path / "model")
    assert (code, "qwen2_5_vl tiny" in out) == (0, True)
    assert json.loads((tmp_path / "model/config.json").read_text())["model_type"] == "qwen2_5_vl"
    code, _, message = mmr1("model", "new", "--family", "qwen", tmp_path / "other")
    assert (code, "unknown model family 'qwen'" in message) == (2, True)


def test_the_command_line_makes_a_tokenizer_of_a_corpus(mmr1, tmp_path):
    (tmp_path / "corpus.txt").write_text("tomography tomography\nechocardiogram\n")
    assert mmr1("model", "new", tmp_path / "own")[0] == 0
    code, _, _ = mmr1("model", "new", "--corpus", tmp_path / "corpus.txt", tmp_path / "given")
    assert code == 0
    own, given = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("own", "given"))
    for word in ("tomography", "echocardiogram"):
        assert len(given.tokenize(word)) == 1 < len(own.tokenize(word))
    code, _, message = mmr1("model", "new", "--corpus", tmp_path / "gone", tmp_path / "other")
    assert (code, "gone" in message) == (1, True)


def test_spans_are_where_the_placeholders_are_expanded():
    kinds = {1: "image", 2: "video"}
    media = [image(56, 84, 0), video(4, 56, 56, 1), image(56, 56, 2)]
    ids = [9, 1, 8, 2, 1, 7]
    expanded = expand_placeholders(kinds, ids, media)
    spans = expanded_spans(kinds, ids, media)
    assert [length for _, length in spans] == [medium.tokens for medium in media] == [6, 8, 4]
    for (start, length), placeholder in zip(spans, (1, 2, 1), strict=True):
        assert expanded[start : start + length] == [placeholder] * length
    assert [i for i in expanded if i not in kinds] == [9, 8, 7]
    with pytest.raises(ValueError, match=r"placeholders for .*'image', 'image'.*media are"):
        expand_placeholders(kinds, [1, 1], media[:2])
