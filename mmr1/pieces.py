"""Run pieces of another project's Python file, with what they need of it and no more.

So a function of a file that imports a whole training stack works where that is not installed.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

Scope = Sequence[ast.stmt]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache
def _parsed(path: Path, changed_ns: int) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not Python that can be parsed: {error}") from error


def parsed(path: Path) -> ast.Module:
    """The parsed file. Raises ValueError if it is missing or cannot be parsed."""
    if not path.is_file():
        raise ValueError(f"{path}: no such Python file")
    return _parsed(path.resolve(), path.stat().st_mtime_ns)


def holder(path: Path, body: Scope, name: str) -> Function | ast.ClassDef:
    """The function or class of that name, the outermost first."""
    for node in ast.walk(ast.Module([*body], [])):
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return node
    raise ValueError(f"{path} has no function or class '{name}'")


def function(path: Path, name: str, given: Mapping[str, Any] | None = None) -> Any:
    """A function, class or method of a file, with what it needs of the file.

    A function in another one gets the assignments and functions around it that it names. A method
    becomes a function whose first parameter is the object.

    Args:
        path: The file.
        name: ``function``, ``Class.method`` or ``function.inner``.
        given: Names that it finds besides, in place of the file's.

    Raises:
        ValueError: If the file has no such function, or a statement that the function needs cannot
            be run.
    """
    *outer, last = name.split(".")
    bodies: list[Scope] = [parsed(path).body]
    for part in outer:
        bodies.insert(0, holder(path, bodies[0], part).body)
    found = (n for n in _flat(bodies[0]) if isinstance(n, Function | ast.ClassDef))
    target = copy(next((n for n in found if n.name == last), None))
    if target is None:
        raise ValueError(f"{path} has no function '{name}'")
    if isinstance(target, Function):
        target.decorator_list, target.returns = [], None  # they name what is not needed
    namespace: dict[str, Any] = {"__name__": f"pieces_of_{path.stem}", **(given or {})}
    needed = [*_needed([target], bodies, set(given or ())), target]
    return _run(path, needed, namespace)[last]


def block(path: Path, statements: Sequence[ast.stmt], given: Mapping[str, Any]) -> dict[str, Any]:
    """Run statements of a file with what they need of its top level; their names."""
    needed = _needed(statements, [parsed(path).body], set(given))
    return _run(path, [*needed, *statements], dict(given))


def _flat(body: Scope) -> Iterator[ast.stmt]:
    """The statements of one scope, those of its branches included."""
    for node in body:
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    yield from _flat([child])
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    yield from _flat(child.body)


def _needed(
    statements: Sequence[ast.stmt], bodies: Sequence[Scope], given: set[str]
) -> list[ast.stmt]:
    """The statements that define what these name, and what those name in turn, in their order."""
    found: dict[ast.stmt, None] = {}
    asked, names = set(given), list(_read(statements))
    while names:
        name = names.pop()
        if name in asked:
            continue
        asked.add(name)
        for body in bodies:
            defining = [n for n in body if name in _defined(n) and n not in statements]
            for node in defining:
                if node not in found:
                    found[node] = None
                    names += _read([node])
            if defining:
                break
    return sorted(found, key=lambda node: node.lineno)


def _read(statements: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                yield node.id


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement gives a value."""
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name.partition(".")[0] for alias in names}
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Try() | ast.If() | ast.With():
            return {
                name for inner in _flat([node]) if inner is not node for name in _defined(inner)
            }
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)
                    and isinstance(n.ctx, ast.Store)}  # fmt: skip
    return set()


def _run(path: Path, statements: Sequence[ast.stmt], namespace: dict[str, Any]) -> dict[str, Any]:
    # Annotations name types of what is not imported.
    future = ast.parse("from __future__ import annotations").body
    code = compile(ast.Module([*future, *statements], []), str(path), "exec")
    try:
        exec(code, namespace)
    except Exception as error:
        raise ValueError(
            f"{path}: a statement that this part needs cannot be run: "
            f"{type(error).__name__}: {error}{_remedy(path, error)}"
        ) from error
    return namespace


def _remedy(path: Path, error: Exception) -> str:
    """Return what brings a missing module: its package, or the path to it in the same project."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    name = error.name.partition(".")[0]
    for folder in path.resolve().parents:
        if (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file():
            return f"; it is in {folder}: add that to PYTHONPATH"
    return f"; install it where mmr1 is installed, such as by: pip install {name}"
