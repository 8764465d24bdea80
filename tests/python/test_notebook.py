"""The notebook runs as it stands, and shows a run as a notebook should."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mmr1.trainer.runs.display import LENGTH, cell_html
from mmr1.trainer.runs.step import Step
from mmr1.types import (
    Completion,
    Message,
    Prompt,
    Reward,
    RolloutGroup,
    Sample,
    ScoredGroup,
    Status,
    TextPart,
)
from tests.paths import REPOSITORY


def test_what_a_model_wrote_is_text_in_the_cell() -> None:
    sample = Sample("1", (Message("user", (TextPart("a < b?"),)),), "yes")
    texts = ("<script>", "x" * (LENGTH + 1))
    completions = tuple(Completion(np.zeros(1), np.zeros(1), t, False, 0) for t in texts)
    broken = Reward(None, Status.ERROR, error="mine: it failed")
    scored = [
        ScoredGroup(RolloutGroup(Prompt(sample, "", ()), (completion,)), (reward,))
        for completion, reward in zip(completions, (Reward(0.25), broken), strict=True)
    ]
    cell = cell_html(Step(2, {"step": 2}, scored), 4, "reward 0.250")
    assert '<progress value="2" max="4">' in cell
    for text in ("a &lt; b?", "&lt;script&gt;", ">0.250<", f">{'x' * LENGTH} …<", ">error<"):
        assert text in cell
    assert "<table>" not in cell_html(Step(1, {"step": 1, "loss": 1.0}), 4, "loss 1.000")


def test_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    import nbformat

    notebook = nbformat.read(REPOSITORY / "scripts/examples/quickstart.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (html,) = [
        out.data["text/html"] for out in code[1].outputs if "<progress" in str(out.get("data"))
    ]
    assert 'value="40" max="40"' in html  # one cell, which every step replaced
    assert html.count("<tr>") == 5
    assert "Which digit is this?" in html
    printed = "".join(out.text for cell in code for out in cell.outputs if "text" in out)
    assert "reward of greedy answers" in printed
    found = re.search(r"first step (\S+), of the last (\S+)\n", printed)
    assert found is not None
    first, last = map(float, found.groups())
    assert first < last
    assert (tmp_path / "trained/config.json").is_file()
