"""Styles of tools and environments that packages declare."""

from __future__ import annotations

import pytest

from mmr1.environments import custom, styles
from mmr1.environments.custom import OwnEpisode, load_environment
from mmr1.environments.styles import Candidate, SpokenEnvironment, ToolStyle
from mmr1.registry import Registry

SOURCE = """\
class Shout:
    LOUD = True
    def __init__(self, times=1): ...
    def reset(self, sample): ...
    def step(self, action): return action, True, 1.0
"""


def loud(candidate: Candidate) -> SpokenEnvironment | None:
    if not hasattr(candidate.shown, "LOUD"):
        return None
    return SpokenEnvironment(candidate.found, lambda: "a conversation")


STYLE = ToolStyle("Loud", ("class with LOUD",), loud, suffixes=(".loud",))


@pytest.fixture
def declared(monkeypatch):
    """Declares the one style of this file, and no other."""
    registry = Registry("tool style", {"loud": f"{__name__}:STYLE"})
    monkeypatch.setattr(styles, "TOOL_STYLES", registry)
    for function in (styles.tool_styles, custom._load):
        function.cache_clear()
    yield
    for function in (styles.tool_styles, custom._load):
        function.cache_clear()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shout.py"
    path.write_text(SOURCE)
    return path


def test_declared_style_is_asked_before_own_form(declared, file):
    assert load_environment(f"{file}:Shout", {}).episode() == "a conversation"
    file.write_text(SOURCE.replace("LOUD", "QUIET"))
    custom._load.cache_clear()
    assert isinstance(load_environment(f"{file}:Shout", {}).episode(), OwnEpisode)


def test_options_of_declared_style_are_checked(declared, file):
    with pytest.raises(ValueError, match="'tmes'; its settings: times"):
        load_environment(f"{file}:Shout", {"tmes": 2})


def test_unknown_form_names_declared_signatures(declared, file):
    file.write_text("class Shout:\n    def reset(self, sample): ...\n")
    with pytest.raises(ValueError, match=r"(?s)no method step; known are:.*Loud: class with LOUD"):
        load_environment(f"{file}:Shout", {})


def test_suffix_tells_file_from_function(declared):
    assert styles.is_tool_file("tools.loud")
    assert not styles.is_tool_file("tools.py:loud")
    assert not styles.is_tool_file("tools.yaml")
