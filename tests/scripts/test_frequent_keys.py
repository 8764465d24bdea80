"""The help of a command names the keys that recipes set most."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml
from typer.testing import CliRunner

from mmr1.cli import app
from mmr1.config.file import config_from
from mmr1.config.frequent import frequent_keys
from mmr1.config.show import flat
from mmr1.recipes import recipes

FILES = [path for folder in recipes().values() for path in folder.glob("*.yaml")]


def as_written() -> Counter[str]:
    """In how many recipes each key stands, without what short forms stand for."""
    return Counter(key for path in FILES for key in flat(yaml.safe_load(path.read_text())))


@pytest.mark.parametrize("command", ["train", "sft"])
def test_help_names_the_thirty_keys_most_set(command):
    keys = [key for key, _ in frequent_keys(FILES, command)]
    plain = flat(config_from({"model": {"path": "m"}}, (), command).model_dump())
    read = config_from({"model": {"path": "m"}}, (), command).sections
    most = [k for k, _ in as_written().most_common() if k in plain and k.partition(".")[0] in read]
    assert len(keys) == len(set(keys)) == 30
    assert {*most[:12]} <= {*keys}
    shown = CliRunner().invoke(app, [command, "--help"]).output
    assert all(key in shown for key in keys)
    assert max(map(len, shown.splitlines())) <= 80
