"""Small changes of Python code: an operator, a constant, a condition, a call, a statement left out.

Messages, assertions, annotations and what only a GPU would feel are not changed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SWAPPED: Mapping[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult, ast.LShift: ast.RShift},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
PAIRS = (
    *(("max", "min"), ("amax", "amin"), ("maximum", "minimum"), ("any", "all"), ("sum", "mean")),
    *(("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like")),
)
RENAMED = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
COMMUTATIVE = {"isinstance", "getattr", "max", "min", "maximum", "minimum", "vecdot"}
UNFELT = {"strict", "device", "non_blocking", "pin_memory"}
"""Keywords that only a GPU, or a fault of ours, would feel."""
IGNORED = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed file.

    Attributes:
        change: Name of the function, and the changed lines before and after.
        lines: First line of the statement, and the line after it; of the function for a default,
            of the file for all else that is executed when the file is imported.
    """

    file: str
    change: str
    lines: tuple[int, int]
    source: str


def mutants(file: str, code: bytes) -> list[Mutant]:
    """Return all mutants of a file, in the order of its lines."""
    tree, found = ast.parse(code), dict[str, Mutant]()
    starts = [0, *(end + 1 for end, byte in enumerate(code) if byte == ord("\n"))]

    def visit(node: Any, name: str, lines: range, in_function: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name, in_function = f"{name}{node.name}.", isinstance(node, ast.FunctionDef)
            lines = range(node.lineno, node.end_lineno + 1) if in_function else lines
        elif isinstance(node, ast.stmt) and in_function:
            end = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno
            lines = range(node.lineno, max(end, node.lineno) + 1)
        for before, after in _changes(node):
            add(before, after, name, lines)
        if not isinstance(node, IGNORED):
            for child in _children(node):
                visit(child, name, lines, in_function)

    def add(old: Any, new: ast.AST, name: str, lines: range) -> None:
        start, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1]
        end += old.end_col_offset
        put = ast.unparse(new)
        put = f"({put})" if isinstance(new, ast.expr) and not isinstance(new, ast.Constant) else put
        first, last = starts[old.lineno - 1], starts[old.end_lineno] - 1
        shown = code[first:last], code[first:start] + put.encode() + code[end:last]
        change = f"{name[:-1]}: " + " => ".join(" ".join(part.decode().split()) for part in shown)
        source = (code[:start] + put.encode() + code[end:]).decode()
        if ast.dump(ast.parse(source)) != ast.dump(tree):
            found.setdefault(change, Mutant(file, change, (lines.start, lines.stop), source))

    visit(tree, "", range(len(starts)), False)
    return list(found.values())


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield a node or one below it, and what takes its place."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            yield node, _with(node, ops=[SWAPPED[type(op)]()])
        case ast.BinOp(op=op) if type(op) in SWAPPED:
            yield node, _with(node, op=SWAPPED[type(op)]())
        case ast.BoolOp(op=op, values=values):
            yield node, _with(node, op=SWAPPED[type(op)]())
            yield node, _with(node, values=values[:-1]) if len(values) > 2 else values[0]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return  # -1 and 1 are the same dimension of a matrix; the 1 is changed
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node, node.operand
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield node, ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield node, ast.Constant(2 * value or 1.0)
        case ast.If() | ast.IfExp():
            yield from ((node.test, ast.Constant(value)) for value in (True, False))
        case ast.Call():
            yield from ((node, changed) for changed in _changed_calls(node))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield node, ast.Pass()
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]) | ast.Raise(exc=ast.Call()):
            yield node, ast.Pass()


def _changed_calls(call: Any) -> Iterator[ast.Call]:
    field = "attr" if isinstance(call.func, ast.Attribute) else "id"
    name = getattr(call.func, field, "")
    if name in RENAMED:
        yield _with(call, func=_with(call.func, **{field: RENAMED[name]}))
    if len(call.args) == 2 and name not in COMMUTATIVE:
        yield _with(call, args=call.args[::-1])
    for keyword in call.keywords:
        others = [other for other in call.keywords if other is not keyword]
        if name == "clamp" and not others:
            yield _with(call, keywords=[_with(keyword, arg=RENAMED[keyword.arg])])
        elif keyword.arg not in (*UNFELT, None) and not isinstance(keyword.value, ast.Constant):
            yield _with(call, keywords=others)


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below without annotations, types and decorators."""
    skipped = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    skipped += getattr(node, "decorator_list", [])
    for child in ast.iter_child_nodes(node):
        unfelt = isinstance(child, ast.keyword) and child.arg in UNFELT
        of_type = isinstance(child, ast.Subscript) and ast.unparse(child.value)[0].isupper()
        if not (unfelt or of_type or any(child is each for each in skipped)):
            yield child
