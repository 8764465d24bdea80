"""Whatever files hold, commands end well or with one line and exit code 2, never a traceback."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmr1 import cli
from mmr1.config.file import load_config
from mmr1.data.record import read_records
from mmr1.report.report_command import make_report
from mmr1.trainer.runs.checkpoint import checkpoints
from tests.report.run_files import completion, prompt, write_run

pytestmark = pytest.mark.slow

bounded = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
fewer = settings(bounded, max_examples=25)

# Texts with lone surrogates, control characters and what JSON, YAML and TeX take for their own.
texts = st.text(
    st.characters() | st.sampled_from("\ud800\udfff\x00\x1b\u2028{}[]<>\\$%&*!|:-#'\"\n\t"),
    max_size=12,
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 0.1, -0.0, float("nan"), float("inf"), "", "null"])
    | st.floats()
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
bytes_of_file = st.binary(max_size=60)


@st.composite
def damaged(draw: Callable[..., Any], whole: bytes) -> bytes:
    """A file with some of its bytes gone, doubled, or others."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.integers(begin, min(len(data), begin + 40)))
        data[begin:end] = draw(bytes_of_file | st.just(bytes(data[begin:end] * 2)))
    return bytes(data)


@st.composite
def replaced(draw: Callable[..., Any], tree: Any) -> Any:
    """A tree with another value at one of its places, a key more or a key less."""
    if isinstance(tree, dict) and tree and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(tree)))
        if not draw(st.integers(0, 5)):
            return {**{k: v for k, v in tree.items() if k != key}, draw(texts): draw(values)}
        return {**tree, key: draw(replaced(tree[key]))}
    if isinstance(tree, list) and tree and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(tree) - 1))
        return [*tree[:place], draw(replaced(tree[place])), *tree[place + 1 :]]
    return draw(values)


@contextmanager
def only_value_errors() -> Iterator[None]:
    """They become one line and exit code 2."""
    try:
        yield
    except ValueError as error:
        assert type(error).__module__ in ("builtins", "mmr1.data.record") or type(
            error
        ).__module__.startswith("mmr1."), type(error)
        assert str(error).strip()


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, str]:
    """Exit code and error output of a command. Anything else that it raises is a traceback."""
    monkeypatch.setattr("sys.argv", ["mmr1", *map(str, arguments)])
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0), said.getvalue()


CONFIG = {
    "model": {"path": "m", "lora": {"rank": 4}, "dtype": "float32"},
    "data": {"train": {"a.jsonl": 1, "b.jsonl": 2}, "format": {"question": "q"}, "image": {}},
    "algorithm": {"name": "dapo", "kl": {"coef": 0.1}, "loss": {"clip_ratio_high": 0.3}},
    "rewards": {
        "math": {"weight": 2},
        "mine": {
            "type": "f.py:g",
        },
    },
    "rollout": {"engine": {"type": "hf"}, "n": 2, "max_response_length": 8},
    "environment": {"type": "tools", "tools": ["crop"]},
    "resources": {"ranks": 2, "engines": 1},
    "trainer": {"max_steps": 2, "output_dir": "out", "validation": {"data": "c.jsonl"}},
}


@bounded
@given(tree=replaced(CONFIG))
def test_trees_of_a_configuration(tree: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "run.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8", errors="surrogatepass")
    with only_value_errors():
        load_config(path)


@bounded
@given(data=damaged(yaml.safe_dump(CONFIG).encode()))
def test_bytes_of_a_configuration(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "run.yaml"
    path.write_bytes(data)
    with only_value_errors():
        load_config(path)


KEYS = ["model.path", "data.train", "algorithm", "rewards.math", "seed", "rollout.n", ""]


@bounded
@given(st.lists(st.tuples(st.sampled_from(KEYS) | texts, texts | values.map(str)), max_size=3))
def test_overrides(pairs: list[tuple[str, str]]) -> None:
    with only_value_errors():
        load_config(None, [f"{key}={value}" for key, value in pairs])


RECORD = {
    "version": 1,
    "id": "a",
    "messages": [
        {
            "role": "user",
            "content": [{"type": "image", "path": "a.png"}, {"type": "text", "text": "Which?"}],
        }
    ],
    "answer": [{"box": [0, 0, 4, 4]}],
    "task": "grounding",
    "metadata": {"source": "x"},
}


def _read(line: bytes, folder: Path) -> None:
    path = folder / "rows.jsonl"
    path.write_bytes(line + b"\n")
    with only_value_errors():
        list(read_records(path))


@bounded
@given(tree=replaced(RECORD))
def test_trees_of_a_record(tree: Any, tmp_path: Path) -> None:
    _read(json.dumps(tree).encode(), tmp_path)


@bounded
@given(data=damaged(json.dumps(RECORD).encode()))
def test_bytes_of_a_record(data: bytes, tmp_path: Path) -> None:
    _read(data, tmp_path)


ROWS = st.fixed_dictionaries(
    {"completion": texts | st.just("<answer>7</answer>")},
    optional={"answer": values | st.just("7"), "task": texts | st.just("math")},
)


@fewer
@given(st.lists(ROWS | replaced({"completion": "7", "answer": "7"}), min_size=1, max_size=5))
def test_completions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[Any]) -> None:
    """Every row has a verdict, or the command names the bad one."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "verdicts.jsonl"
    output.unlink(missing_ok=True)
    places = ("--input", tmp_path / "rows.jsonl", "--output", output)
    code, said = ended(monkeypatch, "reward", "score", "--reward", "math", *places, "--workers", 1)
    assert (code == 0) == output.exists()
    if code:
        assert code == 2
        assert said.startswith(("error: ", "mmr1 reward: "))
        assert "Traceback" not in said
    else:
        assert len(output.read_bytes().splitlines()) == len(rows)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    group = prompt("1", [completion("<answer>7</answer>"), completion("b", None)])
    return write_run(
        tmp_path_factory.mktemp("reported") / "run",
        {1: [group]},
        metrics=[{"step": 1, "reward/mean": 0.5}],
        faults={"engine/died": 1},
    )


FILES = ["rollouts/step_000001.jsonl", "metrics.jsonl", "summary.json", "config.yaml"]


@pytest.mark.parametrize("name", FILES)
@bounded
@given(data=st.data())
def test_bytes_of_a_run_in_a_report(
    name: str, data: st.DataObject, reported: Path, tmp_path: Path
) -> None:
    file = reported / name
    whole = file.read_bytes()
    try:
        file.write_bytes(data.draw(damaged(whole)))
        with only_value_errors():
            make_report([reported], tmp_path / "report.html", 10**6)
    finally:
        file.write_bytes(whole)


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, digits: Path
) -> tuple[Path, Path]:
    """A run of two steps with a checkpoint of each, and its configuration."""
    folder = tmp_path_factory.mktemp("saved")
    tree = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"train": str(digits / "sft.jsonl"), "train_batch_size": 2, "num_workers": 0},
        "trainer": {
            "max_steps": 2,
            "output_dir": str(folder / "run"),
            "checkpoints": {"save_steps": 1},
        },
    }
    config = folder / "run.yaml"
    config.write_text(json.dumps(tree))
    with pytest.MonkeyPatch.context() as patch:
        code, said = ended(patch, "sft", config)
    assert code == 0, said
    return folder / "run", config


COMMANDS = {
    "resume": lambda run, config, out: ("sft", config, "--resume", f"trainer.output_dir={run}"),
    "export": lambda run, config, out: ("export", checkpoints(run / "checkpoints")[-1], out),
    "report": lambda run, config, out: ("report", run, "--output", out),
}


@pytest.mark.parametrize("command", COMMANDS)
@fewer
@given(data=st.data())
def test_damaged_runs(
    command: str,
    data: st.DataObject,
    saved: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """One file of the run is damaged, gone, a folder or a link to nowhere."""
    run, out = tmp_path / "run", tmp_path / "out"
    for place in (run, out):
        shutil.rmtree(place, ignore_errors=True)
        place.unlink(missing_ok=True)
    shutil.copytree(saved[0], run)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != "run.lock")
    file = data.draw(st.sampled_from(files))
    whole = file.read_bytes()
    file.unlink()
    how = data.draw(st.sampled_from(["bytes", "empty", "gone", "folder", "link"]))
    if how == "bytes":
        file.write_bytes(data.draw(damaged(whole)))
    elif how == "empty":
        file.touch()
    elif how == "folder":
        file.mkdir()
    elif how == "link":
        file.symlink_to("nowhere")
    code, said = ended(monkeypatch, *COMMANDS[command](run, saved[1], out))
    assert "Traceback" not in said
    if code:
        assert code in (1, 2), said
        assert any(line.startswith("error: ") for line in said.splitlines()), said
