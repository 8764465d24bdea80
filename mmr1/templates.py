"""Jinja templates, built in or a user's file."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mmr1.registry import suggest


def named_texts(folder: Traversable) -> dict[str, str]:
    """The text of each template in a folder, by name, in the order of names."""
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".jinja")), key=lambda f: f.name)
    return {f.name.removesuffix(".jinja"): f.read_text(encoding="utf-8") for f in files}


def load_template(name: str, folder: Traversable, kind: str) -> Template:
    """A template of the folder by name, or a ``.jinja`` file by path.

    Args:
        kind: Word for it in messages.

    Raises:
        ValueError: No such template, or it cannot be read.
    """
    try:
        return environment().from_string(_text(name, folder, kind))
    except TemplateError as error:
        raise ValueError(f"{kind} '{name}': {error}") from error


def environment(trimmed: bool = True) -> ImmutableSandboxedEnvironment:
    """The environment of templates; ``trimmed``: lines of statements leave no white space."""
    return ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=trimmed, lstrip_blocks=trimmed,
        keep_trailing_newline=not trimmed,
    )  # fmt: skip


def text_of(name: str, kind: str) -> str:
    """A file's text. Raises ValueError if it cannot be read."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{kind} '{name}': no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{kind} '{name}' cannot be read: {error}") from error


def _text(name: str, folder: Traversable, kind: str) -> str:
    if name.endswith((".jinja", ".j2", ".txt")):
        return text_of(name, kind)
    texts = named_texts(folder)
    if name not in texts:
        raise ValueError(
            f"unknown {kind} '{name}'{suggest(name, texts)}; known: {', '.join(texts)}; "
            "or name a .jinja file"
        )
    return texts[name]
