"""Evaluations through the command line, with a real model: several at once, and interrupted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1.evaluation.benchmarks import deciding_changes, run_evaluations
from mmr1.report.run_reader import open_run
from mmr1.vision.families.tiny import new_model
from tests.jsonl import read_jsonl


@pytest.fixture(scope="module")
def other_model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "other"
    new_model(path, seed=1)
    return path


@pytest.fixture
def config(tiny_model, digits, tmp_path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model: {{path: {tiny_model}, dtype: float32}}\n"
        "rollout: {engine: hf, max_prompt_length: 156, max_response_length: 4}\n"
        f"eval: {{sampled: {{n: 3}}, limit: 6, output_dir: {tmp_path}/out,\n"
        f"  data: {{geoqa: {digits}/eval.jsonl, mine: {digits}/rl.jsonl}}}}\n"
    )
    return path


def lines(path: Path) -> list[dict]:
    return read_jsonl(path)


def test_two_models_on_two_datasets(config, tiny_model, other_model, tmp_path, mmr1):
    models = f"eval.models={{a: {tiny_model}, b: {other_model}}}"
    code, output, message = mmr1("eval", config, models)
    assert code == 0, message
    for word in ("geoqa", "mine", "greedy", "sampled", "a → b"):
        assert word in output
    content = json.loads((tmp_path / "out/results.json").read_text())
    pairs = {(r["model"], r["data"]): r for r in content["results"]}
    assert set(pairs) == {(m, d) for m in "ab" for d in ("geoqa", "mine")}
    for (model, data), result in pairs.items():
        folder = tmp_path / "out" / model / data
        assert json.loads((folder / "result.json").read_text()) == {
            "prompts": 6, **result["modes"],
        }  # fmt: skip
        assert len(lines(folder / "completions.jsonl")) == 6 * (1 + 3)
    with pytest.raises(ValueError, match=r"folder of an evaluation .*not of a run"):
        open_run(tmp_path / "out/a/mine")
    # A benchmark's name brings its rewards, another name leaves those of the configuration.
    assert set(pairs["a", "geoqa"]["modes"]["greedy"]["components"]) == {"format", "math"}
    assert len(content["comparisons"]) == 4  # two datasets, two decodings
    assert {c["result"]["prompts"] for c in content["comparisons"]} == {6}


def test_an_interrupted_evaluation_is_continued(config, tmp_path, mmr1):
    loaded = load_config(config, [f"eval.output_dir={tmp_path}/whole"], "eval")
    whole, _ = run_evaluations(loaded)
    folder = tmp_path / "out" / "mine"
    code, _, message = mmr1("eval", config)
    assert code == 0, message
    rows = (folder / "completions.jsonl").open().readlines()
    (folder / "result.json").unlink()
    (folder / "completions.jsonl").write_text("".join(rows[:9]) + rows[9][:20])  # cut in a line
    code, _, message = mmr1("eval", config)
    assert code == 0, message
    assert lines(folder / "completions.jsonl") == whole["", "mine"].rows


@pytest.mark.parametrize(
    ("change", "decides"),
    [
        ({"rollout.engine.dtype": "bfloat16"}, True),
        ({"rollout.stop": ["."]}, True),
        ({"environment": {"tools": ["zoom"]}}, True),
        ({"environment": {"tools": ["zoom"], "max_turns": 9}}, True),
        ({"eval.sampled": {"n": 2}}, True),
        ({"eval.sampled": {"n": 2, "top_p": 0.5}}, True),
        ({"data.image.max_pixels": 3136}, True),
        ({"data.train_batch_size": 2}, False),
        ({"rollout.n": 2}, False),
        ({"eval.limit": 2}, False),
        ({"resources.engines": 2}, False),
    ],
)
def test_what_a_completion_depends_on_decides(change, decides):
    tools = {"tools": ["zoom"], "max_turns": 3}
    config = Config(
        model={"path": "anywhere", "dtype": "float32"},
        environment=tools if "environment" in change and "max_turns" in str(change) else None,
        rollout={"engine": {"dtype": "float32"}},
        eval={"sampled": {"n": 2, "top_p": 0.9}},
    )
    assert bool(deciding_changes(config, config.changed(change))) == decides
    assert deciding_changes(config, config) == []


def test_another_evaluation_is_not_mixed_in(config, mmr1):
    assert mmr1("eval", config)[0] == 0
    code, _, message = mmr1("eval", config, "eval.sampled.temperature=0.5")
    assert code == 2
    assert "another eval.sampled.temperature" in message
    assert mmr1("eval", config, "data.train_batch_size=4")[0] == 0  # decides nothing


REWARD = "def reward(completion, answer, **row):\n    return {value}\n"


@pytest.fixture
def own(tmp_path, tiny_model, digits) -> Path:
    """The configuration of an evaluation whose model, pictures and reward are files of the test."""
    shutil.copytree(tiny_model, tmp_path / "model")
    shutil.copytree(digits, tmp_path / "digits")
    (tmp_path / "model/generation_config.json").write_text("{}")
    (tmp_path / "my.py").write_text(REWARD.format(value=0.25))
    path = tmp_path / "own.yaml"
    path.write_text(
        f"model: {{path: {tmp_path}/model, dtype: float32}}\n"
        "rollout: {engine: hf, max_prompt_length: 156, max_response_length: 4}\n"
        f"rewards: {{mine: {{type: '{tmp_path}/my.py:reward'}}}}\n"
        f"eval: {{limit: 4, output_dir: {tmp_path}/out, data: {tmp_path}/digits/eval.jsonl}}\n"
    )
    return path


def test_nothing_is_reused_that_has_changed(own, tmp_path, mmr1):
    assert mmr1("eval", own)[0] == 0
    assert mmr1("eval", own)[0] == 0  # nothing has changed
    picture = (
        tmp_path
        / "digits"
        / json.loads((tmp_path / "digits/eval.jsonl").read_text().splitlines()[0])["messages"][0][
            "content"
        ][0]["path"]
    )
    edited = {
        tmp_path / "my.py": REWARD.format(value=0.75).encode(),
        picture: picture.read_bytes() + b" ",
        tmp_path / "model/chat_template.jinja": b"{{ messages }}",
        tmp_path / "model/model.safetensors": b"other weights",
        tmp_path / "model/generation_config.json": b'{"do_sample": true}',
        tmp_path / "model/tokenizer_config.json": b"{}",
        tmp_path / "digits/eval.jsonl": (tmp_path / "digits/eval.jsonl").read_bytes() + b"\n",
    }
    for file, content in edited.items():
        before = file.read_bytes() if file.exists() else None
        file.write_bytes(content)
        code, _, message = mmr1("eval", own)
        assert (code, "holds an evaluation with another" in message) == (2, True), (file, message)
        assert ("media of" if file == picture else str(file)) in message
        file.unlink() if before is None else file.write_bytes(before)
    assert mmr1("eval", own)[0] == 0


def test_nothing_to_evaluate_on(tiny_model):
    with pytest.raises(ValueError, match=r"eval\.data=PATH"):
        run_evaluations(Config(model={"path": str(tiny_model)}))
