"""The expensive half of the math reward, run by the verifier's workers only: computer algebra.

Text becomes an expression through latex2sympy's grammar, never through ``eval``; expressions are
compared by math-verify, numbers by their value to 50 digits.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Literal

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import NormalizationConfig, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from latex2sympy2_extended.logic import And
from latex2sympy2_extended.sets import FiniteSet
from math_verify import verify as math_verify
from math_verify.grader import should_treat_as_complex, sort_key
from sympy.core.relational import Relational

from mmr1.rewards.item import BadGoldError, unread
from mmr1.rewards.reading.numbers import Number, parse_number, same_number
from mmr1.rewards.reading.vocabulary import VOCABULARY, rewriter
from mmr1.types import Reward

# It warns that nobody holds the deadline; the pool does.
logging.getLogger("math_verify").setLevel(logging.ERROR)

Percent = Literal["gold", "prediction", "neither"]

_NORMALISATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_AS_WRITTEN = ConversionConfig(lowercase_symbols=False)  # R and r are two radii
_SYMBOL = re.compile(r"[A-Za-z]{1,24}'{0,3}(?:_\{?[A-Za-z0-9, ]{1,12}\}?)?")
_MIXED = re.compile(r"(?<![\d.}\w])(\d+)\s*(?:\\frac\{(\d+)\}\{(\d+)\}|\s(\d+)/(\d+))(?![\d!^])")
_BASE = re.compile(r"(?<![A-Za-z\d_^}.])\d[\dA-F]*(?:\.[\dA-F]+)?_\{?(\d+)")
_ROW = re.compile(r"\d\s+\d")
# Numbers with spaces between them are a row; the grammar would multiply them, or add them.
_SIDE_BY_SIDE = re.compile(
    r"(?<![\w\\^.}])(?:\\[A-Za-z]+\s*)?[+-]?\d+(?:\.\d+)?(?:\s+[+-]?\d+(?:\.\d+)?)+"
)
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|lt|gt|ne)(?![a-z])")
_AND = re.compile(r"\s*,?\s*(?:\band\b|\\(?:land|wedge)(?![a-z])|且)\s*")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq)(?![a-z])")
_OR = re.compile(r"\s*,?\s*(?:\bor\b|\\(?:lor|vee)(?![a-z])|或)\s*")
_RULE = re.compile(
    r"\\?\{\s*([A-Za-z])\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|R|ℝ)\s*)?"
    r"(?:\\(?:mid|vert)(?![a-z])|[|:])\s*(.*\b\1\b.*?)\s*\\?\}"
)
_in_grammar = rewriter("algebra")
_IS_REAL = r"[A-Za-z]\s*\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|R)"
_REAL = re.compile(rf",\s*{_IS_REAL}$|^{_IS_REAL}\s*,")
_RATIO = re.compile(r"[^:=<>]+(?::[^:=<>]+)+")


@lru_cache(4096)
def parse(text: str) -> Any:
    """A normalised answer as a sympy object. Raises ValueError when it is not mathematics."""
    if "{" in text[:2] and (rule := _RULE.fullmatch(text)):
        text = _REAL.sub("", rule[2])
    if _INEQUALITY.search(text):
        if len(cases := _OR.split(text)) > 1 and all(map(_INEQUALITY.search, cases)):
            return sympy.Or(*map(_condition, cases), evaluate=False)
        if len(bounds := _AND.split(text)) > 1 and all(map(_INEQUALITY.search, bounds)):
            return sympy.And(*map(_condition, bounds), evaluate=False)
    prepared = normalize_latex(_prepare(text), _NORMALISATION)
    try:
        value = _read(prepared, PredictionMode.SLL)
    except ValueError:
        value = _read(prepared, PredictionMode.LL)
    _refuse_odd_names(value)
    return value


def _condition(text: str) -> Any:
    """An inequality, or a chain of them. Raises ValueError where it is none."""
    value = parse(text)
    links = value.args if isinstance(value, And) else (value,)
    if not all(isinstance(link, Relational) for link in links):
        raise ValueError(f"{text[:40]!r} is not an inequality")
    return sympy.And(*links, evaluate=False)


def _read(latex: str, mode: PredictionMode) -> Any:
    """Parse with one of the two strategies of ANTLR.

    SLL is many times faster; where it succeeds it finds what LL finds, where not LL is asked
    (Parr, The Definitive ANTLR 4 Reference, 13.7).
    """
    reader = _Latex2Sympy(
        is_real=not should_treat_as_complex(latex), convert_degrees=False, config=_AS_WRITTEN
    )
    make_parser = reader.create_parser

    def fast_parser(text: str) -> Any:
        parser = make_parser(text)
        parser._interp.predictionMode = mode
        return parser

    reader.create_parser = fast_parser
    reader.parse_number = _exact_number
    try:
        return reader.parse(latex)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the grammar raises bare Exception
        raise ValueError(str(error).partition("\n")[0]) from error


def _exact_number(text: str) -> sympy.Rational:
    """A literal as the number it is; latex2sympy would have sympy compile it as Python source."""
    return sympy.Rational(*Fraction(text.replace(",", "")).as_integer_ratio())


def warm() -> None:
    """Parse common inputs, so that forked workers have the parser's tables."""
    common = VOCABULARY["common_expressions"]
    for text in common:
        parse(text)
    verify(common[0], common[1])
    verify(common[6], common[7])
    verify("x+1", "2x")  # simplify, solve and sets import lazily, which a deadline must not pay for
    verify(r"x \ge 3", r"(3, \infty)")
    parse.cache_clear()


def verify(gold: str, prediction: str, percent: Percent = "neither") -> float | Reward:
    """1.0 where two normalised answers are equal, else 0.0, or the status of an unread answer.

    Args:
        gold: The gold answer.
        prediction: The model's answer.
        percent: The side that carried a percent sign. The gold's may be left out by an answer; an
            answer's own sign is a hundredth.

    Raises:
        BadGoldError: The gold is not mathematics that this grammar knows.
    """
    gold_value = check_gold_value(gold)
    if _other_base(gold, prediction):
        return 0.0
    if len(stages := _APPROXIMATELY.split(prediction)) > 1:
        return _verify_stages(gold, stages, percent)
    try:
        value = parse(prediction)
    except ValueError as error:
        return unread(f"no mathematics: {error}")
    gold_value, value = _with_imaginary_unit(gold_value, value)
    if percent == "prediction":
        return float(
            _is_number(gold_value)
            and _is_number(value)
            and _same_value(gold, gold_value * 100, prediction, value)
        )
    try:
        if _equal(gold, gold_value, prediction, value):
            return 1.0
    except TypeError as error:  # of sympy, where a bound is not evaluated: the interval (1!, 2)
        return unread(f"mathematics that cannot be compared: {error}")
    if percent == "gold" and _is_number(gold_value) and _is_number(value):
        return float(_same_value(gold, gold_value, prediction, value * 100))
    return 0.0


def verify_any(comparisons: tuple[tuple[Any, ...], ...]) -> float:
    """1.0 where one of several golds is met; golds that cannot be read are never met.

    Raises:
        BadGoldError: No gold can be read.
    """
    unreadable = 0
    for comparison in comparisons:
        try:
            if verify(*comparison) == 1.0:
                return 1.0
        except BadGoldError:
            unreadable += 1
            if unreadable == len(comparisons):
                raise
    return 0.0


def _verify_stages(gold: str, stages: list[str], percent: Percent) -> float:
    r"""The verdict on ``\sqrt{10} \approx 3.16``: a number and its roundings, one the gold."""
    try:
        numbers = [_to_50_digits(parse(stage)) for stage in stages if stage.strip()]
    except (ValueError, AttributeError):
        return 0.0
    if len(numbers) < len(stages) or not all(n.is_number and n.is_real for n in numbers):
        return 0.0
    if any(abs(number - numbers[0]) > abs(numbers[0]) / 100 for number in numbers):
        return 0.0
    return float(any(verify(gold, stage, percent) == 1.0 for stage in stages))


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
    if isinstance(value, sympy.Eq | And) and not _is_relation(gold_value):
        value = _stated(value)
    elif isinstance(value, FiniteSet) and not any(map(_is_relation, gold_value.args)):
        value = _all_stated(value)
    elif isinstance(gold_value, sympy.Eq) and isinstance(value, sympy.Expr):
        gold_value = _stated(gold_value)
    if value is None or gold_value is None:
        return False
    solutions = _solutions(gold_value), _solutions(value)
    if solutions[0] and solutions[1]:
        return _same_solutions(*solutions[0], *solutions[1])
    if (solutions[0] and solutions[0][1] is not None) and isinstance(value, FiniteSet):
        return False  # the bounds of an inequality are not its solutions
    if _is_number(gold_value) and _is_number(value):
        return _same_value(gold, gold_value, prediction, value)
    if isinstance(gold_value, sympy.Expr) and _members(value) != 1:
        return False
    lists = _with_repeats(gold, gold_value, value), _with_repeats(prediction, value, gold_value)
    if any(lists):
        sides = lists[0] or gold_value, lists[1] or value
        return all(isinstance(side, sympy.Tuple) for side in sides) and _verified(*sides)
    return _verified(gold_value, value)


_verified = partial(
    math_verify, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True
)


def _solutions(value: Any) -> tuple[Any, Any] | None:
    """The real numbers that an inequality, or several, or a set of intervals describes.

    Beside them the unknown, which intervals have not. None where it is something else.
    """
    if isinstance(value, sympy.Interval | sympy.Union | sympy.Complement):
        return value, None
    if not isinstance(value, Relational | And | sympy.And | sympy.Or):
        return None
    if isinstance(value, sympy.Eq) or len(value.free_symbols) != 1:
        return None
    (unknown,) = value.free_symbols
    try:
        return _set_of(value, unknown), unknown
    except (NotImplementedError, TypeError):
        return None


def _set_of(value: Any, unknown: Any) -> Any:
    if isinstance(value, sympy.Or):
        return sympy.Union(*(_set_of(case, unknown) for case in value.args))
    if isinstance(value, And | sympy.And):
        return sympy.Intersection(*(_set_of(link, unknown) for link in value.args))
    sides = value.lhs, value.rhs
    if unknown not in sides or not all(s == unknown or s.is_number for s in sides):
        raise NotImplementedError  # x^2 < 4 is a task, and math-verify compares it as it stands
    return value.as_set()


def _same_solutions(gold: Any, gold_unknown: Any, answer: Any, unknown: Any) -> bool:
    if gold_unknown is not None and unknown is not None and gold_unknown.name != unknown.name:
        return False
    return bool(gold == answer) or bool(sympy.SymmetricDifference(gold, answer).is_empty)


def _is_relation(value: Any) -> bool:
    return isinstance(value, Relational | And)


def _stated(relation: Any) -> Any:
    """The value that an equation gives its left side, or None where it gives none.

    ``x = 4``, ``f(2) = 4``, ``S = 2 + 2 = 4`` and ``2 + 2 = 4`` state 4. ``x + y = 4`` and
    ``x^2 = 4`` are conditions, ``x = 2x`` is an equation to be solved and ``5 = 4`` is false.
    """
    links = list(relation._unsorted_args) if isinstance(relation, And) else [relation]
    if not all(isinstance(link, sympy.Eq) for link in links):
        return relation  # an inequality between two bounds: a set, for math-verify to compare
    if any(_is_false(link) for link in links):
        return None
    first, last = links[0].lhs, links[-1].rhs
    if _is_number(first):
        return first if isinstance(last, sympy.Symbol) else last
    if isinstance(first, sympy.Add | sympy.Mul | sympy.Pow | sympy.Mod) and first.free_symbols:
        side = len(links) > 1 and first.is_Mul and all(f.is_Symbol for f in first.args)
        return last if side else None  # AB = CD = 4 is about a side AB
    if isinstance(first, sympy.Symbol) and first in last.free_symbols:
        return None
    return last


def _all_stated(listed: Any) -> Any:
    """``x = 1, y = 2`` as the list 1, 2, or None where an equation states no value."""
    if not any(isinstance(element, sympy.Eq) for element in listed._unsorted_args):
        return listed
    elements = [_stated(e) if isinstance(e, sympy.Eq) else e for e in listed._unsorted_args]
    return None if any(element is None for element in elements) else FiniteSet(*elements)


def _is_false(link: Any) -> bool:
    """True for two numbers that differ, unless one is the other, rounded."""
    if not (_is_number(link.lhs) and _is_number(link.rhs)):
        return False
    left, right = _to_50_digits(link.lhs), _to_50_digits(link.rhs)
    if not (left.is_finite and right.is_finite):
        return bool(left != right)
    exact = link.lhs.is_Integer and link.rhs.is_Integer
    return bool(abs(left - right) > (0 if exact else abs(left) / 100))


def _members(value: Any) -> int:
    """The number of values in an answer, each as often as it was written; 2 for any larger set."""
    if isinstance(value, FiniteSet):
        return len(value._unsorted_args)
    return 2 if isinstance(value, sympy.Set | sympy.Tuple) else 1


def _with_repeats(text: str, value: Any, other: Any) -> sympy.Tuple | None:
    """A list such as ``1, 1, -1``, in order only beside a tuple; None for all other values.

    In braces it is a set.
    """
    if not isinstance(value, FiniteSet) or text.lstrip().startswith(r"\{"):
        return None
    written = value._unsorted_args
    ordered = written if isinstance(other, sympy.Tuple) else sorted(written, key=sort_key)
    return sympy.Tuple(*ordered) if len(written) > len(value.args) else None


def _with_imaginary_unit(gold_value: Any, value: Any) -> tuple[Any, Any]:
    """Both values with ``i`` as the imaginary unit, where it is their only letter.

    Beside other letters it is as likely a current or an index, and remains a symbol. It is made the
    same on both sides: the parser takes it for real in ``Ri`` and for complex in ``R i``.
    """
    symbols = {s for v in (gold_value, value) for s in getattr(v, "free_symbols", ())}
    names = {symbol.name for symbol in symbols}
    if names == {"i"}:
        table = dict.fromkeys(symbols, sympy.I)
    elif len(names) < len(symbols):
        table = {symbol: sympy.Symbol(symbol.name, real=True) for symbol in symbols}
    else:
        return gold_value, value
    return _substituted(gold_value, table), _substituted(value, table)


def _substituted(value: Any, table: dict[Any, Any]) -> Any:
    if isinstance(value, FiniteSet):  # whose own subs forgets what was written twice
        return FiniteSet(*(element.subs(table) for element in value._unsorted_args))
    return value.subs(table)


def _other_base(gold: str, prediction: str) -> bool:
    """True for other bases: ``12_8`` is not 12 and not ``12_9``; an answer may omit the base."""
    bases = set(_BASE.findall(prediction)) - {"10"}
    return bool(bases) and bases != set(_BASE.findall(gold))


def _is_number(value: Any) -> bool:
    return isinstance(value, sympy.Expr) and value.is_number is True


def _to_50_digits(number: Any) -> Any:
    return sympy.N(_evaluated(number), 50)


def _evaluated(number: Any) -> Any:
    try:
        return number.doit()  # N alone leaves a remainder as it is
    except ZeroDivisionError:
        return sympy.nan


def _same_value(gold: str, a: Any, prediction: str, b: Any) -> bool:
    """True for equal numbers: rationals exactly, irrational numbers to 40 significant digits.

    A decimal stands for the other number by its last place. No difference is too small to count.
    """
    decimals = [n.decimals for n in map(parse_number, (gold, prediction)) if n and n.decimals]
    a, b = _evaluated(a), _evaluated(b)
    if not decimals and ((a.is_Rational and b.is_Rational) or 0 in (a, b)):
        return bool(a == b or (a - b).equals(0))
    x, y = _to_50_digits(a), _to_50_digits(b)
    if not (x.is_finite and y.is_finite):
        return bool(x == y and x is not sympy.nan)
    if not decimals:
        return bool(abs(x - y) <= max(abs(x), abs(y)) * sympy.Float("1e-40"))
    if not (x.is_real and y.is_real):
        return bool(abs(x - y) <= sympy.Float("1e-9"))
    left, right = Fraction(str(x)), Fraction(str(y))
    return same_number(
        Number(left.numerator, left.denominator, min(decimals)),
        Number(right.numerator, right.denominator, min(decimals)),
    )


def _prepare(text: str) -> str:
    """Rewrite what the grammar does not know in words that it does."""
    text = _MIXED.sub(_mixed_to_sum, _in_grammar(text))
    text = _SIDE_BY_SIDE.sub(_separated, text) if _ROW.search(text) else text
    if _RATIO.fullmatch(text) and "\\" not in text.replace(r"\frac", "").replace(r"\sqrt", ""):
        return _ratio(text)
    return text


def _mixed_to_sum(match: re.Match[str]) -> str:
    whole, numerator, denominator = match[1], match[2] or match[4], match[3] or match[5]
    if not 0 < int(numerator) < int(denominator):
        return match[0]
    return rf"({whole}+\frac{{{numerator}}}{{{denominator}}})"


def _separated(match: re.Match[str]) -> str:
    """A row of numbers with commas; the arguments of a command (``\\frac 2 3``) are not a row."""
    row = match[0]
    return row if row.startswith("\\") or not _ROW.search(row) else ", ".join(row.split())


def _ratio(text: str) -> str:
    """a:b as a fraction; a:b:c as its terms over the first, so that multiples agree."""
    terms = [f"({term.strip()})" for term in text.split(":")]
    if len(terms) == 2:
        return rf"\frac{{{terms[0]}}}{{{terms[1]}}}"
    return "(" + ",".join(rf"\frac{{{term}}}{{{terms[0]}}}" for term in terms[1:]) + ")"


def _refuse_odd_names(value: Any) -> None:
    """Refuse names that are not a variable's: they could be text on its way to a compiler."""
    nodes = value.free_symbols if hasattr(value, "free_symbols") else ()
    for symbol in nodes:
        if not _SYMBOL.fullmatch(str(symbol)):
            raise ValueError(f"{str(symbol)[:40]!r} is not a name of a variable")
