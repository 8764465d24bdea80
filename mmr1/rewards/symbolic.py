"""The expensive half of the math reward, run by the verifier's workers only: computer algebra.

Text becomes an expression through latex2sympy's grammar, never through ``eval``; expressions are
compared by math-verify, numbers by their value to 50 digits.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import verify as math_verify
from math_verify.grader import should_treat_as_complex

from mmr1.rewards.item import BadGoldError
from mmr1.rewards.numbers import Number, parse_number, same_number

# It warns that nobody holds the deadline; the pool does.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_NORMALISATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_SYMBOL = re.compile(r"[A-Za-z]{1,24}'{0,3}(?:_\{?[A-Za-z0-9, ]{1,12}\}?)?")
_FUNCTION_NAME = re.compile(
    r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|"
    r"theta|alpha|beta|infty)(?![a-z])"
)
_TRIGONOMETRY = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\s*\^\s*(?:\d|\{\d+\}))?)\s*\(?\s*(\d+(?:\.\d+)?)\s*°\s*\)?"
)
_MIXED = re.compile(r"(?<![\d.}\w])(\d+)\s*(?:\\frac\{(\d+)\}\{(\d+)\}|\s(\d+)/(\d+))(?![\d!^])")
_LABEL = re.compile(
    r"(?:\\(?:angle|triangle|odot|overline|vec)\s*)?\{?[A-Za-z]{1,4}'?(?:_\{?\w+\}?)?\}?"
    r"(?:\s*\([A-Za-z]\))?\s*=\s*(?=[^=]+$)"
)
_POINT = re.compile(r"[A-Z]'?\s*(?=\()")
_RATIO = re.compile(r"[^:=<>]+(?::[^:=<>]+)+")


@lru_cache(4096)
def parse(text: str) -> Any:
    """A normalised answer as a sympy object. Raises ValueError when it is no mathematics."""
    prepared = normalize_latex(_prepare(text), _NORMALISATION)
    try:
        value = latex2sympy(
            prepared,
            is_real=not should_treat_as_complex(prepared),
            convert_degrees=False,
            normalization_config=None,
        )
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the grammar raises bare Exception
        raise ValueError(str(error).partition("\n")[0]) from error
    _refuse_odd_names(value)
    return value


def verify(gold: str, prediction: str, percent: int = 1) -> float:
    """1.0 where two normalised answers are equal, else 0.0.

    Args:
        gold: The gold answer.
        prediction: The model's answer.
        percent: 100 where one side carried a percent sign, which may mean a hundredth or nothing.

    Raises:
        BadGoldError: The gold is no mathematics that this grammar knows.
    """
    gold_value = check_gold_value(gold)
    try:
        value = parse(prediction)
    except ValueError:
        return 0.0
    if _equal(gold, gold_value, prediction, value):
        return 1.0
    if percent != 1 and _is_number(gold_value) and _is_number(value):
        return float(
            _same_value(gold, gold_value * percent, prediction, value)
            or _same_value(gold, gold_value, prediction, value * percent)
        )
    return 0.0


def check_gold(gold: str) -> float:
    """1.0; raises BadGoldError when the gold answer cannot be parsed."""
    check_gold_value(gold)
    return 1.0


def check_gold_value(gold: str) -> Any:
    try:
        return parse(gold)
    except ValueError as error:
        raise BadGoldError(f"the gold answer {gold[:80]!r} is not readable: {error}") from error


def _equal(gold: str, gold_value: Any, prediction: str, value: Any) -> bool:
    if _is_number(gold_value) and _is_number(value):
        return _same_value(gold, gold_value, prediction, value)
    return bool(
        math_verify(
            gold_value,
            value,
            allow_set_relation_comp=True,
            timeout_seconds=None,
            raise_on_error=True,
        )
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, sympy.Expr) and value.is_number is True


def _same_value(gold: str, a: Any, prediction: str, b: Any) -> bool:
    """Two numbers by value: exactly, or as a decimal that stands for the other."""
    decimals = [n.decimals for n in map(parse_number, (gold, prediction)) if n and n.decimals]
    x, y = sympy.N(a, 50), sympy.N(b, 50)
    if not decimals and not (a.has(sympy.Float) or b.has(sympy.Float)):
        scale = max(abs(x), abs(y), 1)
        return bool(abs(x - y) <= scale * sympy.Float("1e-40"))
    if not (x.is_real and y.is_real and x.is_finite and y.is_finite):
        return bool(abs(x - y) <= sympy.Float("1e-9"))
    places = min(decimals) if decimals else 6
    return same_number(Number(Fraction(str(x)), places), Number(Fraction(str(y)), places))


def _prepare(text: str) -> str:
    """What the grammar does not know, in words that it does."""
    text = _FUNCTION_NAME.sub(r"\\\1", text)
    text = _TRIGONOMETRY.sub(r"\1(\\frac{\2\\pi}{180})", text).replace("°", "")
    text = _MIXED.sub(_mixed_to_sum, text)
    text = text.replace("**", "^").replace("*", r"\cdot ")
    if _RATIO.fullmatch(text) and "\\" not in text.replace(r"\frac", "").replace(r"\sqrt", ""):
        return _ratio(text)
    text = _POINT.sub("", text, count=1) if _POINT.match(text) else text
    label = _LABEL.match(text)
    return text[label.end() :] if label else text


def _mixed_to_sum(match: re.Match[str]) -> str:
    whole, numerator, denominator = match[1], match[2] or match[4], match[3] or match[5]
    if not 0 < int(numerator) < int(denominator):
        return match[0]
    return rf"({whole}+\frac{{{numerator}}}{{{denominator}}})"


def _ratio(text: str) -> str:
    """a:b as a fraction; a:b:c as its terms over the first, so that multiples agree."""
    terms = [f"({term.strip()})" for term in text.split(":")]
    if len(terms) == 2:
        return rf"\frac{{{terms[0]}}}{{{terms[1]}}}"
    return "(" + ",".join(rf"\frac{{{term}}}{{{terms[0]}}}" for term in terms[1:]) + ")"


def _refuse_odd_names(value: Any) -> None:
    """Names that are no variable's could be text on its way to a compiler."""
    nodes = value.free_symbols if hasattr(value, "free_symbols") else ()
    for symbol in nodes:
        if not _SYMBOL.fullmatch(str(symbol)):
            raise ValueError(f"{str(symbol)[:40]!r} is no name of a variable")
