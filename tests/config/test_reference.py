"""The page of all keys says what the models say."""

from __future__ import annotations

from mmr1.config.explain import key_paths
from mmr1.config.file import config_from, load_config
from scripts.dev.config_reference import page, tree


def test_the_tree_of_the_page_is_the_default_configuration(tmp_path):
    path = tmp_path / "tree.yaml"
    path.write_text(tree().replace("???", "m", 1))
    assert load_config(path) == config_from({"model": {"path": "m"}})


def test_the_page_names_every_key():
    text = page()
    keys = [key for key, _ in key_paths() if not key.endswith(".type")]
    missing = [key for key in keys if f"| `{key.rpartition('.')[2]}` |" not in text]
    assert [key for key in missing if f"## `{key}`" not in text] == []
