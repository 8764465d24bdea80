"""Declarations of commands, those of installed packages included."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name

import pytest

from mmr1.config.commands import COMMANDS, command_named


@pytest.mark.parametrize("name", COMMANDS.names())
def test_a_declaration_names_functions_that_can_be_called(name):
    declaration = command_named(name)
    assert declaration.name == name
    assert declaration.trains == bool(declaration.steps or declaration.run)
    if declaration.steps is not None:
        inspect.signature(resolve_name(declaration.steps)).bind("config", resume=0, functions={})
    if declaration.run is not None:
        inspect.signature(resolve_name(declaration.run)).bind("config", resume=0)
