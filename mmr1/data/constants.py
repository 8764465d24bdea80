"""Texts that a file of another project assigns, read by parsing: nothing of the file is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmr1.pieces import Function, Scope, holder, parsed


def constant(path: Path, name: str) -> str | dict[str, str]:
    """A text, or several by key, that a file assigns to ``name``; also in a function or class.

    ``Class.name`` and ``function.name`` look there alone.

    Raises:
        ValueError: If the file does not assign the name, or computes its value.
    """
    tree = parsed(path)
    scopes = [tree.body]
    *outer, last = name.split(".")
    for part in outer:
        scopes = [holder(path, scopes[0], part).body, *scopes]
    found = _assigned(scopes[0], last)
    if found is None:
        known = sorted(_names_of_texts(tree))
        raise ValueError(
            f"{path} has no constant '{name}'"
            + (f"; its texts: {', '.join(known[:12])}" if known else "")
        )
    value, within = found
    if isinstance(value, ast.Dict):
        keys = [_text(path, key, within) for key in value.keys if key is not None]
        return dict(zip(keys, (_text(path, v, within) for v in value.values), strict=True))
    return _text(path, value, within)


def is_function(path: Path, name: str) -> bool:
    """True if a file defines a function, method or inner function of this name."""
    body: Scope = parsed(path).body
    try:
        for part in name.split("."):
            found = holder(path, body, part)
            body = found.body
    except ValueError:
        return False
    return isinstance(found, Function)


def _assigned(body: Scope, name: str) -> tuple[ast.expr, list[Scope]] | None:
    """The last value assigned to it, and the scopes around, the inner first."""
    found = None
    for scopes, node in _statements(body, []):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                found = value, scopes
            case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name and value:
                found = value, scopes
    return found


def _statements(body: Scope, outer: list[Scope]) -> Iterator[tuple[list[Scope], ast.stmt]]:
    scopes = [body, *outer]
    for node in body:
        yield scopes, node
        if isinstance(node, Function | ast.ClassDef):
            yield from _statements(node.body, scopes)
        else:
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            for child in inner:
                yield from _statements([child], scopes)


def _text(path: Path, node: ast.expr, scopes: Sequence[Scope]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(path, left, scopes) + _text(path, right, scopes)
        case ast.Name(id=name):
            for body in scopes:
                if (found := _assigned(body, name)) is not None:
                    return _text(path, found[0], [*found[1], *scopes])
    raise ValueError(
        f"{path}:{node.lineno}: this is computed, and not a text that parsing gives: "
        f"{ast.unparse(node)[:80]}"
    )


def _names_of_texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str())):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp()) if name.isupper():
                yield name
