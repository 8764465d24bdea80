"""The cleaning of texts before they are read: invisible characters, wrappers, a final stop."""

from __future__ import annotations

import re
import unicodedata

_BOX_TOKENS = re.compile(r"<\|(?:begin|end)_of_box\|>")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"), ("**", "**"), ("`", "`"))
_QUOTES = (('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("「", "」"), ("__", "__"), ("*", "*"))
_FIRST = {opening[0] for opening, _ in (*_DELIMITERS, *_QUOTES)}
_MAX_WRAPPERS = 8  # nobody nests more, and a megabyte of them must not cost a megabyte squared
_FENCE = re.compile(r"(?s)```[A-Za-z]*\s*\n?(.*?)\n?\s*```")
_IN_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|rm)\s*\{([^{}]*)\}")
_PREFIX = re.compile(
    r"(?i)(?P<bold>\*\*|__)?(?:#+\s+)?(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+|my\s+)?"
    r"(?:(?:final|correct|right)\s+)*(?:answers?|results?|(?<=correct )(?:option|choice))\b"
    r"(?:\s+(?:is|are)\b)?\s*(?(bold)(?:\*\*|__)?)\s*[:=]?\s*(?(bold)(?:\*\*|__)?)\s*(?=\S)"
    r"|\**(?:所以|因此|故|综上所述|综上|本题|最后)?[,，]?\s*(?:正确|最终)?的?(?:答案|选项|结果)\**"
    r"(?:是|为|选|应为|[:：])+\**\s*(?=\S)"
    r"|(?:所以|因此|故|应)?选(?:择|项)?(?:[:：]\s*)?(?=[A-J(（])"
)


def clean(text: str) -> str:
    """Return the text in composed characters, without invisible ones, and with plain spaces.

    Format characters (category Cf) are dropped, full-width ASCII is narrowed, and every space but
    the line feed becomes a space. Superscripts, fractions and roots stay: NFKC would make a 2 of ².

    >>> clean("\\u200b１２\\u00a0cm²")
    '12 cm²'
    """
    if "_of_box|>" in text:
        text = _BOX_TOKENS.sub("", text)
    text = text.expandtabs(1)
    if text.isascii():
        return text.strip()
    return "".join(map(_plain, unicodedata.normalize("NFC", text))).strip()


def _plain(character: str) -> str:
    if character < "\x7f" or character == "\n":
        return character
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) == "Cf" else character


def unwrap(text: str, *, quotes: bool = True) -> str:
    """Return the text without what wraps the whole of it.

    Wrappers are a code fence, math delimiters, Markdown, ``\\text{}``, a leading "the answer is"
    and a final stop.

    Args:
        quotes: Remove quotation marks, too; mathematics has primes.

    >>> unwrap("**The answer is:** `New York`."), unwrap(r"$\\text{B}$")
    ('New York', 'B')
    """
    if "```" in text and (fence := _FENCE.fullmatch(text.strip())):
        text = fence[1]
    for _ in range(_MAX_WRAPPERS):
        before, text = text, text.strip()
        if text.endswith((".", "。")) and not text.endswith(".."):
            text = text[:-1].rstrip()
        if quotes and len(text) > 2 and text[-1] == "!" and text[-3:-1].isalpha():
            text = text[:-1]
        if text[:1] in _FIRST:
            text = _without_delimiters(text, _QUOTES if quotes else ())
        if text[:1] == "\\" and (inner := _IN_TEXT.fullmatch(text)):
            text = inner[1]
        if match := _PREFIX.match(text):
            text = text[match.end() :]
        if text == before:
            break
    return text


def _without_delimiters(text: str, more: tuple[tuple[str, str], ...]) -> str:
    for opening, closing in (*_DELIMITERS, *more):
        inner = text[len(opening) : -len(closing)]
        if (
            len(text) > len(opening) + len(closing)
            and text.startswith(opening)
            and text.endswith(closing)
            and opening not in inner
            and closing not in inner
        ):
            text = inner
    return text


def fold_case(text: str) -> str:
    """Return the text in one case, with single spaces."""
    return " ".join(text.casefold().split())
