"""Runs the policy's Python code; a built-in tool.

Each call has a separate process, forked for it and ended after it: code could otherwise change
what later calls see. There is no network, and no file can be opened, not even to import a module:
what may be imported is loaded before.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib
import io
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Any, NoReturn

MODULES = (
    "bisect", "calendar", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "numpy",
    "operator", "random", "re", "statistics", "string", "sympy", "textwrap", "time", "typing",
)  # fmt: skip
# What numpy, sympy and the standard library import when it is first used.
_PARTS = (
    "_strptime", "numpy.fft", "numpy.ma", "numpy.polynomial", "numpy.random", "numpy.testing",
    "pprint", "queue", "sympy.abc", "sympy.assumptions.satask", "sympy.concrete.delta",
    "sympy.crypto", "sympy.polys.domains.old_polynomialring", "sympy.stats", "sympy.vector",
)  # fmt: skip
_LOADS_THE_REST = """
from sympy import *
x, y = symbols("x y")
solve([x + y - 3, x - y - 1], [x, y]), solve(x**3 - 2 * x + 1, x), solveset(sin(x) - 1, x)
integrate(sin(x) ** 2 * exp(x), (x, 0, pi)), limit(sin(x) / x, x, 0), series(cos(x), x)
simplify(sin(x) ** 2 + cos(x) ** 2), factor(x**2 - 1), nsimplify(0.1), N(sqrt(2)), latex(x**2)
Matrix([[1, 2], [3, 4]]).inv(), Matrix([[2, 1], [1, 2]]).eigenvals(), factorint(2**20 - 1)
summation(x, (x, 1, 10)), dsolve(Function("f")(x).diff(x) - x), sympify("x + 1"), primerange(9)
ask(Q.positive(x**2 + 1), Q.real(x)), refine(sqrt(x**2), Q.positive(x)), satisfiable(x > 1)
Matrix([[2, 1], [1, 2]]).eigenvects(), product(x, (x, 1, 5)), nsolve(cos(x) - x, x, 1)
lambdify(x, sin(x))(1.0), lambdify(x, x**2, "numpy")(2.0)
"""
_CLOSED = "no file can be opened here, and no other module"
_KEPT = 100_000  # characters of what is printed
_KEPT_BEFORE_ERROR = 1000  # the pool cuts an error, and its end says what went wrong
_FILE = "<code>"


def warm_up() -> None:
    """Import, in the zygote, the modules that the policy's code may use."""
    for name in (*MODULES, *_PARTS):
        importlib.import_module(name)
    exec(_LOADS_THE_REST, {})
    import mmr1.environments.worker  # noqa: F401


def python(code: str) -> str:
    """Run Python code, and show what it prints and the value of its last line.

    Args:
        code: The code. It has the standard modules for mathematics, numpy and sympy.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not PathFinder]
    sys.meta_path.append(_NoOthers)
    printed = _Printed()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            _execute(code)
    except SystemExit:
        pass
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            problem = f"{type(error).__name__}: {_CLOSED}"
        before = _shortened(printed.getvalue(), _KEPT_BEFORE_ERROR)
        problem = _shortened(problem, _KEPT_BEFORE_ERROR // 2)
        raise ValueError(f"{before}{problem}{_line_of(error)}") from None
    return printed.getvalue()


class _NoOthers:
    """Refuses modules that are not loaded in the way that sympy expects of those it can do without.

    ``PathFinder`` would look into folders that have changed, and fail in another way.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> NoReturn:
        raise ModuleNotFoundError(_CLOSED, name=name)


def _execute(code: str) -> None:
    body = ast.parse(code, _FILE).body
    last = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    names: dict[str, Any] = {"__name__": "__main__"}
    whole = ast.Module(body[:-1] if last else body, type_ignores=[])
    exec(compile(whole, _FILE, "exec", dont_inherit=True), names)
    if last is not None:
        value = eval(compile(ast.Expression(last), _FILE, "eval", dont_inherit=True), names)
        if value is not None:
            print(repr(value))


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}... (cut: {len(text):,} characters)\n"


def _line_of(error: BaseException) -> str:
    """The line of the code at which an error happened."""
    if isinstance(error, SyntaxError):
        return ""  # it says so itself
    trace, line = error.__traceback__, None
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == _FILE else line
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"


class _Printed(io.TextIOBase):
    """Keeps the beginning of what is printed."""

    def __init__(self) -> None:
        self._kept = io.StringIO()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._kept.write(text[: max(0, _KEPT - self._kept.tell())])
        return len(text)

    def getvalue(self) -> str:
        return self._kept.getvalue()
