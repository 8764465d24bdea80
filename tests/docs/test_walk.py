"""The example of ``docs/architecture.md`` is run as it stands, on the README's record."""

from __future__ import annotations

import re

from PIL import Image

from tests.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/architecture.md").read_text()
README = (REPOSITORY / "README.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (record,) = re.findall(r"```json\n(.*?)```", README, re.S)
    (tmp_path / "one.jsonl").write_text(record)
    (tmp_path / "images").mkdir()
    Image.new("RGB", (56, 56), "red").save(tmp_path / "images/1.png")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "docs/architecture.md", "exec"), names)
    assert names["sample"].answer == "4"
    scored = names["scored"]
    assert [len(scored.group.completions), len(scored.rewards)] == [4, 4]
    assert all(reward.value is not None for reward in scored.rewards)
