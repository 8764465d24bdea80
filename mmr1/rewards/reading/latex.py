"""Normalise the spelling of answers: LaTeX, Unicode, plain text."""

from __future__ import annotations

import re
import unicodedata

from mmr1.rewards.reading.characters import unwrap
from mmr1.rewards.reading.units import split_unit
from mmr1.rewards.reading.vocabulary import pairs, rewriter

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_SUBSCRIPT = re.compile("[₀-₉]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_PLAIN = zip("−–—º˚′“”。、", '---°°\'"".,', strict=True)
_UNICODE = {**dict(_PLAIN), **{sign: f"\\{name} " for sign, name in pairs("commands").items()}}
_UNICODE_TABLE = str.maketrans(_UNICODE)
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[A-Za-z]))")
_PLAIN_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\s*(?:\(((?:[^()]|\([^()]*\))*)\)|(\d+))")

_DOLLAR = re.compile(r"(?<!\\)\$")
_CARETS = re.compile(r"\^(\d)\^")  # superscript as Markdown has it
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|mbox|operatorname|rm)\s*"
    r"\{([^{}]*)\}"
)
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|in)(?![a-z])")
_LABEL = re.compile(
    r"(?:(?:\\(?:triangle|odot|over(?:line|rightarrow)|vec|bar|hat)\s*)?\{?"
    r"(?:[A-Za-z]|[A-Z]{2,4})'*(?:_\{?\w+\}?)?\}?"
    r"(?:(?:\s*\^\s*\{\s*-\s*1\s*\})?\s*\([A-Za-z]\))?"
    r"|(?:m\s*)?\\(?:measured)?angle\s*\{?(?:\d{1,2}|[A-Za-z]|[A-Z]{2,4})'?(?:_\{?\w+\}?)?\}?"
    r"|[A-Za-z]{4,20}(?: [A-Za-z]{1,20}){0,3})\s*=\s*(?=[^=]+$)"
)
_OF_X = re.compile(r"y|[a-z](?:\^-1)?\(x\)")
_ARROW = re.compile(r"\\(?:vec|overrightarrow)(?![a-z])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_RECURS = re.compile(r"\\(?:overline|bar|dot)")
_RECURRING = re.compile(
    r"(?<![\d.,])(\d{0,9})\.(?:(\d{0,15})\\(?:overline|bar|dot)\s*(?:\{(\d{1,15})\}|(\d))"
    r"(?:(\d{0,15})\\dot\s*(?:\{(\d)\}|(\d)))?|\((\d{1,15})\))(?!\d)"
)
_PLAIN_BRACKETS = re.compile(r"<([^<>=|]*,[^<>=|]*)>")
_SYSTEM = re.compile(
    r"(?s)(?:\\\{\s*)?\\begin\s*\{(cases|array|aligned)\}(?:\s*\{[lcr| ]+\})?(.*?)\\end\s*\{\1\}\.?"
)
_ROW = re.compile(r"\s*[^=<>]{1,40}=[^=<>]+")
_in_one_spelling = rewriter("latex")


def normalise(text: str) -> str:
    """The answer in one spelling, without its delimiters; equal meaning is not attempted here.

    >>> normalise("$ \\\\dfrac{√3}{2}\\\\, \\\\text{cm}. $")
    '\\\\frac{\\\\sqrt{3}}{2} cm'
    """
    if text.isascii() and text.isalnum():
        return text
    text = unwrap(text, quotes=False)
    if len(_DOLLAR.findall(text)) % 2 == 0:
        text = _DOLLAR.sub("", text)
    if "\n" in text and all(line.count("{") == line.count("}") for line in text.splitlines()):
        text = ", ".join(line for line in text.splitlines() if line.strip())
    if not text.isascii():
        text = _to_latex(text)
    if "\\" in text:
        text = _plain_latex(text)
    if "sqrt" in text:
        text = _PLAIN_ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2]}}}", text)
    if text.startswith("<") and (vector := _PLAIN_BRACKETS.fullmatch(text)):
        text = f"({vector[1]})"
    if ".(" in text:
        text = _RECURRING.sub(_recurring, text)
    text = _CARETS.sub(r"^\1", " ".join(text.split()))
    return unwrap(text, quotes=False)


def without_labels(gold: str, prediction: str) -> tuple[str, str]:
    """Both texts without labels: ``x = 3`` beside ``3`` or ``x = 3`` is 3; both normalised.

    >>> without_labels("x = 3", "3"), without_labels("x=3", "y=3"), without_labels("3x=y", "2")
    (('3', '3'), ('x=3', 'y=3'), ('3x=y', '2'))
    """
    labels = _label(gold), _label(prediction)
    names = [_name(label) for label in labels if label]
    same = len(names) == 2 and (
        names[0] == names[1] or ("y" in names and all(map(_OF_X.fullmatch, names)))
    )
    vector = labels[0] is not None and _ARROW.match(labels[0][0])  # no grammar reads its name
    if labels[0] and (same or vector or not _RELATION.search(prediction)):
        gold = gold[labels[0].end() :]
    if labels[1] and (same or not _RELATION.search(gold)):
        prediction = prediction[labels[1].end() :]
    return gold, prediction


def _name(label: re.Match[str]) -> str:
    return re.sub(r"\\(?:vec|overline|overrightarrow)|[{}\s=]", "", label[0])


def _label(text: str) -> re.Match[str] | None:
    """The name that a text gives its value; ``x = 2x`` is an equation and names nothing."""
    label = _LABEL.match(text)
    if label is None:
        return None
    name, rest = label[0].partition("=")[0].strip(), text[label.end() :]
    if len(name) < 5 and name in _COMMAND.sub("", rest):
        core, _ = split_unit(rest, bare_letters=False)  # the V of "V = 5 V" is a unit
        return None if name in _COMMAND.sub("", core) else label
    return label


def _to_latex(text: str) -> str:
    text = _VULGAR.sub(_vulgar_fraction, text)
    text = _SUPERSCRIPT.sub(lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
    text = _SUBSCRIPT.sub(lambda m: f"_{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2] or m[3]}}}", text)
    return unicodedata.normalize("NFKC", text.translate(_UNICODE_TABLE))


def _vulgar_fraction(match: re.Match[str]) -> str:
    numerator, _, denominator = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _recurring(match: re.Match[str]) -> str:
    """A decimal whose last places recur, as the fraction that it is."""
    whole, fixed, group, single, between, last_group, last, bracketed = match.groups(default="")
    places = group + single + between + last_group + last + bracketed
    nines, shift = 10 ** len(places) - 1, 10 ** len(fixed)
    top = int((whole + fixed) or "0") * nines + int(places)
    return rf"\frac{{{top}}}{{{shift * nines}}}"


def _system(match: re.Match[str]) -> str:
    """The rows of a system that give a value each, as a list; a function by cases stays."""
    rows = [row for row in match[2].replace("&", "").split(r"\\") if row.strip(" ,;")]
    if len(rows) < 2 or not all(_ROW.fullmatch(row) for row in rows):
        return match[0]
    return ", ".join(row.strip(" ,;") for row in rows)


def _plain_latex(text: str) -> str:
    text = _in_one_spelling(text)
    if r"\begin" in text:
        text = _SYSTEM.sub(_system, text)
    if "." in text and _RECURS.search(text):
        text = _RECURRING.sub(_recurring, text)
    return _TEXT.sub(r" \1 ", text)
