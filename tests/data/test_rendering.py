"""The system prompt of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1.config.file import load_config
from mmr1.data.rendering import system_prompt


def test_a_system_prompt_of_another_project_s_file(tmp_path: Path) -> None:
    file = tmp_path / "sft.py"
    file.write_text("def prepare(row):\n    system_message = 'You help.'\n    TEXTS = {'a': 'b'}\n")

    def of(text: str | None) -> str | None:
        return system_prompt(
            load_config(None, ["model.path=m"]).changed({"data.system_prompt": text})
        )

    assert of(f"{file}:system_message") == of("You help.") == "You help."
    assert of(None) is None
    assert of("Write sft.py:main first.") == "Write sft.py:main first."
    with pytest.raises(ValueError, match="no constant 'other'; its texts: system_message"):
        of(f"{file}:other")
    with pytest.raises(ValueError, match="a text for each of several cases"):
        of(f"{file}:TEXTS")
