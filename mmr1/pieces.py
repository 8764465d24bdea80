"""Read pieces of another project's Python file: constants, and functions with their needs.

A constant is read by parsing; nothing of the file is run. A function is run with the statements of
the file that it needs, and no others: so one of a file that imports a whole training stack works
where that is not installed.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

Scope = Sequence[ast.stmt]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Holder = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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


# --- Constants ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """A constant that is chosen by a key: of a dict, or by the cases of a function.

    Attributes:
        texts: The constants by their keys.
        other: That of all other keys, if there is one.
    """

    texts: Mapping[str, str]
    other: str | None = None


def constant(path: Path, name: str) -> str | Choice:
    """A text, or several by key, that a file assigns to ``name``; also in a function or class.

    ``Class.name`` and ``function.name`` look there alone. The name of a function stands for the
    texts that it returns by the cases of its ``match``, or for the text that it adds to a column,
    with a field in the column's place.

    Raises:
        ValueError: There is no such constant, or it is computed.
    """
    tree = parsed(path)
    scopes = [tree.body]
    *outer, last = name.split(".")
    for part in outer:
        scopes = [_holder(path, scopes[0], part).body, *scopes]
    for node in ast.walk(_block(scopes[0])):
        if isinstance(node, _Function) and node.name == last:
            own: list[Scope] = [node.body, *scopes]
            added = _added(path, node, own)
            return _returned(path, node, own) if added is None else added
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
        return Choice(dict(zip(keys, (_text(path, v, within) for v in value.values), strict=True)))
    return _text(path, value, within)


def _block(body: Scope) -> ast.Module:
    return ast.Module(list(body), [])


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, _Holder) and node.name == name


def _holder(path: Path, body: Scope, name: str) -> _Function | ast.ClassDef:
    """The function or class of that name."""
    for node in ast.walk(_block(body)):
        if isinstance(node, _Holder) and node.name == name:
            return node
    raise ValueError(f"{path} has no function or class '{name}'")


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
        if isinstance(node, _Holder):
            yield from _statements(node.body, scopes)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    yield from _statements([child], scopes)


def _added(path: Path, function: _Function, scopes: list[Scope]) -> str | None:
    """The text after ``row["column"] +``, if there is one."""
    for node in ast.walk(function):
        match node:
            case ast.BinOp(left=ast.Subscript(), op=ast.Add(), right=right):
                text = _text(path, right, scopes)
                return "{question}" + text.replace("{", "{{").replace("}", "}}")
    return None


def _returned(path: Path, function: _Function, scopes: list[Scope]) -> Choice:
    texts: dict[str, str] = {}
    other = None
    for node in ast.walk(function):
        if not isinstance(node, ast.Match):
            continue
        for case in node.cases:
            result = next((n for n in case.body if isinstance(n, ast.Return)), None)
            if result is None or result.value is None:
                continue
            text = _text(path, result.value, [case.body, *scopes])
            if isinstance(case.pattern, ast.MatchValue):
                texts[_text(path, case.pattern.value, scopes)] = text
            elif isinstance(case.pattern, ast.MatchAs):
                other = text
    if not texts:
        raise ValueError(f"{path}: {function.name} returns no texts by the cases of a match")
    return Choice(texts, other)


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


# --- Functions ------------------------------------------------------------------------------------


def function(path: Path, name: str, given: Mapping[str, Any] | None = None) -> Any:
    """A function, class or method of a file, with what it needs of the file.

    A function in another one gets the assignments and functions around it that it names. A method
    becomes a function whose first parameter is the object.

    Args:
        path: The file.
        name: ``function``, ``Class.method`` or ``function.inner``.
        given: Names that it finds besides, in place of the file's.

    Raises:
        ValueError: There is none, or a statement that it needs cannot be run.
    """
    tree = parsed(path)
    *outer, last = name.split(".")
    bodies: list[Scope] = [tree.body]
    for part in outer:
        bodies.insert(0, _holder(path, bodies[0], part).body)
    target = next((n for n in _flat(bodies[0]) if _is_named(n, last)), None)
    if target is None:
        raise ValueError(f"{path} has no function '{name}'")
    if isinstance(target, _Function):
        target = _plain(target)
    namespace: dict[str, Any] = {"__name__": f"pieces_of_{path.stem}", **(given or {})}
    needed = [*_needed([target], bodies, set(given or ())), target]
    return _run(path, needed, namespace)[last]


def block(path: Path, statements: Sequence[ast.stmt], given: Mapping[str, Any]) -> dict[str, Any]:
    """Run statements of a file with what they need of its top level; their names."""
    needed = _needed(statements, [parsed(path).body], set(given))
    return _run(path, [*needed, *statements], dict(given))


def _plain(node: _Function) -> _Function:
    """A function without decorators and annotations, which name objects that are not needed."""
    plain = copy(node)
    plain.decorator_list, plain.returns = [], None
    return plain


def _flat(body: Scope) -> Iterator[ast.stmt]:
    """The statements of one scope, those of its branches included."""
    for node in body:
        yield node
        if not isinstance(node, _Holder):
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
    """What brings a module that is missing: its package, or the path to it in the same project."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    name = error.name.partition(".")[0]
    for folder in path.resolve().parents:
        if (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file():
            return f"; it is in {folder}: add that to PYTHONPATH"
    return f"; install it where mmr1 is installed, such as by: pip install {name}"
