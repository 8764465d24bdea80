"""The commands of a shell script, read without running anything.

Assignments, arrays, ``${NAME:-default}``, arithmetic and here-documents are followed. So are
conditions on known values. What only a run could tell is named: a variable of the environment stays
as ``${oc.env:NAME}``, which our configuration reads when it is used.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

Raw = list[str]
"""The words of one command as they are written, quotes included; an operator is a word too."""

_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "\n", "(", ")")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<append>\+?)=(?P<value>.*)", re.S)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!]")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w./ -]*>(?=\s|$)")
"""``<PATH-TO-DATASET>``: for the shell a redirection, for the reader what is to be filled in."""
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_ENDS = {"fi", "done", "esac", "elif", "else", "then", "do", ";;", "}"}


@dataclass(slots=True)
class Script:
    """The commands of a script.

    Attributes:
        commands: The words of each command, expanded, in their order.
        unknown: Words that only a run could tell, with what has been made of them: text of a word
            to note.
        notes: How its branches have been read.
    """

    commands: list[list[str]] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def notes_on(self, command: list[str]) -> list[str]:
        """Notes for the user on a command."""
        about = [n for text, n in self.unknown.items() if any(text in word for word in command)]
        return [*self.notes, *about]


def read_script(text: str, path: str = "", unknown_holds: bool = False) -> Script:
    """The commands of a script.

    Args:
        text: The script.
        path: Where it is, which scripts ask for.
        unknown_holds: Read what stands under a condition that only a run could tell.

    Raises:
        ValueError: A quote or a bracket is never closed.
    """
    reader = _Reader(list(_tokens(text)), path, unknown_holds)
    reader.block(frozenset())
    return Script(reader.commands, reader.unknown, list(dict.fromkeys(reader.notes)))


def _tokens(text: str) -> Iterator[str]:
    """Raw words and operators. A here-document follows its command as the word ``<<TEXT``."""
    at = 0
    documents: list[str] = []
    while at < len(text):
        char = text[at]
        if char == "\\" and text[at + 1 : at + 2] == "\n":
            at += 2
        elif char in " \t\r":
            at += 1
        elif char == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif char == "\n" and documents:
            at += 1
            for mark in documents:
                body, at = _document(text, at, mark)
                yield "<<" + body
            documents = []
            yield "\n"
        elif match := re.compile(r"<<-?\s*(['\"]?)(\w+)\1").match(text, at):
            documents.append(match[2])
            at = match.end()
        elif match := _PLACEHOLDER.match(text, at):
            yield f"'{match[0]}'"
            at = match.end()
        elif match := re.compile(r"\d*(>>?|<)&?\s*").match(text, at):
            at = match.end()  # where the output goes does not matter
            is_process = text[at : at + 1] == "("
            at = _closing(text, at) + 1 if is_process else _word_end(text, at)
        elif found := next((o for o in _OPERATORS if text.startswith(o, at)), None):
            yield found
            at += len(found)
        else:
            end = _word_end(text, at)
            yield text[at:end]
            at = end


def _document(text: str, at: int, mark: str) -> tuple[str, int]:
    match = re.compile(rf"^\s*{re.escape(mark)}\s*$", re.M).search(text, at)
    if match is None:
        raise ValueError(f"the here-document {mark} never ends")
    return text[at : match.start()], match.end()


def _word_end(text: str, at: int) -> int:
    start = at
    while at < len(text):
        char = text[at]
        if char == "\\":
            if text[at + 1 : at + 2] == "\n":
                break
            at += 2
        elif char in "'\"`" or text.startswith(("$(", "${"), at):
            at = _closing(text, at + (char == "$")) + 1
        elif char == "(" and re.fullmatch(r"[A-Za-z_]\w*\+?=", text[start:at]):
            at = _closing(text, at) + 1  # an array
        elif char in " \t\r\n;|&()<>":
            break
        else:
            at += 1
    return min(at, len(text))


def _closing(text: str, at: int) -> int:
    """The position of what closes the quote or bracket at ``at``."""
    opening = text[at]
    closing = {"(": ")", "{": "}"}.get(opening, opening)
    position = at + 1
    while position < len(text):
        char = text[position]
        if char == closing:
            return position
        if char == "\\" and opening != "'":
            position += 2
        elif opening in "({" and char == "#" and text[position - 1] in " \t\n":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif opening == '"' and text.startswith(("$(", "${"), position):
            position = _closing(text, position + 1) + 1
        elif opening in "({" and (char in "'\"`({"):
            position = _closing(text, position) + 1
        else:
            position += 1
    line = text.count("\n", 0, at) + 1
    raise ValueError(f"line {line}: {opening} is never closed")


class _Reader:
    """Follows the tokens once, from the first to the last."""

    def __init__(self, tokens: list[str], path: str, unknown_holds: bool) -> None:
        self.tokens, self.at, self._path = tokens, 0, path
        self._unknown_holds = unknown_holds
        self.commands: list[list[str]] = []
        self.unknown: dict[str, str] = {}
        self.notes: list[str] = []
        self._values: dict[str, list[str]] = {}
        self._reads = True
        """False in a branch that is not taken."""

    def block(self, ends: frozenset[str]) -> None:
        """Read statements up to one of the words ``ends``, which stays."""
        while self.at < len(self.tokens):
            word = self.tokens[self.at]
            if word in ends:
                return
            if word in ("if", "case", "for", "while", "until"):
                self.at += 1
                {"if": self._if, "case": self._case, "for": self._for}.get(word, self._while)()
            elif word in _OPERATORS or word in ("{", "}", "function", "!"):
                self.at += 1
            else:
                self._simple()

    def _simple(self) -> None:
        words: Raw = []
        while self.at < len(self.tokens) and self.tokens[self.at] not in _OPERATORS:
            words.append(self.tokens[self.at])
            self.at += 1
        while self.at < len(self.tokens) and self.tokens[self.at].startswith("<<"):
            words.append(self.tokens[self.at])
            self.at += 1
        if self._reads:
            self._run(words)

    def _run(self, words: Raw) -> None:
        documents = [word[2:] for word in words if word.startswith("<<")]
        words = [word for word in words if not word.startswith("<<")]
        if words and words[0] in _DECLARING:
            words = [word for word in words[1:] if not word.startswith("-")]
            for assignment in filter(None, map(_ASSIGNMENT.fullmatch, words)):
                self._assign(assignment)
            return
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            self._assign(match)
            words = words[1:]
        expanded = [part for word in words for part in self.expand(word)]
        if expanded[:1] == ["read"] and documents:
            body = "".join(self._inside(documents[0].replace("\\\n", " ")))
            self._values[expanded[-1]] = [body]
        elif expanded:
            self.commands.append(expanded)

    def _assign(self, match: re.Match[str]) -> None:
        name, raw = match["name"], match["value"]
        if raw.startswith("("):
            words = [word for word in _tokens(raw[1:-1]) if word != "\n"]
            value = [part for word in words for part in self.expand(word)]
        else:
            value = ["".join(self._inside(raw, quotes=True))]
        if match["append"]:
            value = [*self._values.get(name, []), *value] if raw.startswith("(") else [
                "".join([*self._values.get(name, []), *value])
            ]  # fmt: skip
        self._values[name] = value

    # --- branches ---------------------------------------------------------------------------------

    def _if(self) -> None:
        taken, reads = False, self._reads
        while True:
            condition = self._until("then")
            holds = self._holds(condition) if reads and not taken else False
            if holds is None:
                holds = self._unknown_holds
                self.notes.append(
                    f"if {' '.join(condition)}: only a run could tell; what stands under it is "
                    f"{'read' if holds else 'not read'}"
                )
            self._reads = reads and not taken and holds is True
            taken = taken or holds is True
            self.block(frozenset({"elif", "else", "fi"}))
            word = self._next()
            if word == "elif":
                continue
            if word == "else":
                self._reads = reads and not taken
                self.block(frozenset({"fi"}))
                self._next()
            break
        self._reads = reads

    def _case(self) -> None:
        reads, subject = self._reads, self._until("in")
        value = "".join(part for word in subject for part in self.expand(word)) if reads else ""
        known = "$(" not in value and "${" not in value
        taken = False
        while self.at < len(self.tokens):
            while self.at < len(self.tokens) and self.tokens[self.at] in ("\n", ";;", ";", "("):
                self.at += 1
            if self._peek() in ("esac", ""):
                break
            patterns = [p for p in self._until(")") if p != "|"]
            fits = any(fnmatchcase(value, pattern.strip("'\"")) for pattern in patterns)
            if reads and not known and not taken:
                self.notes.append(
                    f"case {' '.join(subject)}: only a run could tell; it is read as "
                    f"{'|'.join(patterns)}"
                )
                fits = True
            self._reads = reads and fits and not taken
            taken = taken or fits
            self.block(frozenset({";;", "esac"}))
        self._next()
        self._reads = reads

    def _for(self) -> None:
        head = self._until("do")
        values = [
            part for word in head[2:] if word not in (";", "\n") for part in self.expand(word)
        ]
        if self._reads and head:
            self._values[head[0]] = values[:1]
            self.notes.append(f"for {head[0]}: read once, for {', '.join(values[:1])}")
        self.block(frozenset({"done"}))
        self._next()

    def _while(self) -> None:
        self._until("do")
        reads, self._reads = self._reads, False
        self.block(frozenset({"done"}))
        self._next()
        self._reads = reads

    def _until(self, end: str) -> Raw:
        words = []
        while self.at < len(self.tokens) and self.tokens[self.at] != end:
            words.append(self.tokens[self.at])
            self.at += 1
        self.at += 1
        return [word for word in words if word not in ("\n", ";")]

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _next(self) -> str:
        word = self._peek()
        self.at += 1
        return word

    def _holds(self, condition: Raw) -> bool | None:
        """The truth of a condition; None if only a run could tell."""
        words = [w for w in condition if w not in ("{", "}", "(", ")")]
        parts: list[tuple[str, Raw]] = [("||", [])]
        for word in words:
            if word in ("&&", "||"):
                parts.append((word, []))
            else:
                parts[-1][1].append(word)
        holds: bool | None = False
        for link, test in parts:
            value = self._test(test)
            if link == "&&":
                holds = False if False in (holds, value) else holds and value
            else:
                holds = True if True in (holds, value) else (None if value is None else holds)
        return holds

    def _test(self, raw: Raw) -> bool | None:
        negated = raw[:1] == ["!"]
        words = [
            "".join(self.expand(word))
            for word in raw[negated:]
            if word not in ("[", "]", "[[", "]]", "test")
        ]
        if any("$(" in word or "${" in word for word in words):
            return None
        match words:
            case ["-z", text]:
                holds = not text
            case ["-n", text] | [text]:
                holds = bool(text)
            case [left, "=" | "==", right]:
                holds = fnmatchcase(left, right)
            case [left, "!=", right]:
                holds = not fnmatchcase(left, right)
            case [left, "-eq" | "-ne" | "-gt" | "-ge" | "-lt" | "-le" as name, right]:
                compare = getattr(operator, name[1:])
                if not (left.lstrip("-").isdigit() and right.lstrip("-").isdigit()):
                    return None
                holds = compare(int(left), int(right))
            case _:
                return None
        return holds is not negated

    # --- words ------------------------------------------------------------------------------------

    def expand(self, raw: str) -> list[str]:
        """The words that a raw word becomes: none, one or several."""
        whole = re.fullmatch(r'"?\$\{(\w+)\[[@*]\]\}"?', raw)
        if whole is not None:
            return list(self._values.get(whole[1], []))
        if raw in ("$@", '"$@"', "$*", '"$*"', "${@}", '"${@}"'):
            return []
        if raw.startswith("$") and not raw.startswith(("$(", "$'")):
            text = "".join(self._inside(raw, quotes=True))
            return text.split() if "$(" not in text else [text]
        return ["".join(self._inside(raw, quotes=True))]

    def _inside(self, text: str, quotes: bool = False) -> Iterator[str]:
        """The text with its variables replaced; with ``quotes``, without its quotes."""
        at, double = 0, False
        while at < len(text):
            char = text[at]
            if text.startswith("\\\n", at):
                at += 2
            elif char == "\\" and at + 1 < len(text):
                kept = text[at : at + 2] if double and text[at + 1] not in '$`"\\' else text[at + 1]
                yield kept if quotes else text[at : at + 2]
                at += 2
            elif char == "'" and quotes and not double:
                end = _closing(text, at)
                yield text[at + 1 : end]
                at = end + 1
            elif char == '"' and quotes:
                double = not double
                at += 1
            elif text.startswith("$((", at):
                end = _closing(text, at + 1)
                yield self._arithmetic(text[at + 3 : end - 1])
                at = end + 1
            elif text.startswith("$(", at) or (char == "`" and quotes):
                end = _closing(text, at + (char == "$"))
                yield self._output(text[at : end + 1])
                at = end + 1
            elif text.startswith("${", at):
                end = _closing(text, at + 1)
                yield self._parameter(text[at + 2 : end])
                at = end + 1
            elif char == "$" and (match := _NAME.match(text, at + 1)):
                yield self._value(match[0])
                at = match.end()
            else:
                yield char
                at += 1

    def _output(self, text: str) -> str:
        if (folder := self._folder(text)) is not None:
            return folder
        self.unknown[text] = f"{text}: only a run of the script could tell; it stays as it is"
        return text

    def _folder(self, text: str) -> str | None:
        """The folder of ``$(dirname "$0")`` or ``$(cd FOLDER && pwd)``; None for other commands."""
        if not self._path or not text.startswith("$("):
            return None
        inside = text[2:-1].strip()
        if match := re.fullmatch(r"dirname\s+(?:--\s+)?(.+)", inside, re.S):
            return str(PurePosixPath("".join(self.expand(match[1]))).parent)
        if match := re.fullmatch(r"cd\s+(.+?)\s*(?:&&|;)\s*pwd(?:\s+-P)?", inside, re.S):
            return os.path.normpath("".join(self.expand(match[1])))
        return None

    def _value(self, name: str) -> str:
        if self._path and name in ("0", "BASH_SOURCE"):
            return self._path
        if name in self._values:
            return " ".join(self._values[name])
        if name in "@*" or name.isdigit():
            return ""  # the script's own arguments: read as if there were none
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            return self._output(f"${name}")
        text = f"${{oc.env:{name}}}"
        self.unknown[text] = f"{name} is not set in the script; {text} reads it when it is used"
        return text

    def _parameter(self, text: str) -> str:
        if indexed := re.fullmatch(r"(\w+)\[(\d+)\]", text):
            name, at = indexed[1], int(indexed[2])
            if at < len(self._values.get(name, [])):
                return self._values[name][at]
            if name == "BASH_SOURCE" and at == 0:
                return self._value(name)
        match = re.fullmatch(r"(\w+|[@*])(?:\[[@*]\])?(:?[-=+?]|%%?|##?)?(.*)", text, re.S)
        if match is None or (match[1] in "@*" and match[3]):
            return "" if text[:1] in ("@", "*") else self._output(f"${{{text}}}")
        name, mark, rest = match[1], match[2] or "", match[3]
        known = " ".join(self._values[name]) if name in self._values else None
        unset = known is None or (mark.startswith(":") and not known)
        kind = mark[-1:]
        if kind in ("-", "=") and kind:
            value = "".join(self._inside(rest, quotes=True)) if unset else known or ""
            if kind == "=":
                self._values[name] = [value]
            return value
        if kind == "+":
            return "" if unset else "".join(self._inside(rest, quotes=True))
        if kind in ("%", "#") and kind and known is not None:
            return _trimmed(known, mark, "".join(self._inside(rest, quotes=True)))
        if not kind and rest:
            return self._output(f"${{{text}}}")
        return self._value(name)

    def _arithmetic(self, text: str) -> str:
        names = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda m: m[1] or m[2], text)
        try:
            return str(self._number(ast.parse(names.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return self._output(f"$(({text}))")

    def _number(self, node: ast.expr) -> int:
        operators: dict[type[ast.operator], Callable[[int, int], int]] = {
            ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
            ast.Div: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
        }  # fmt: skip
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name) if name in self._values:
                return int("".join(self._values[name]))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in operators:
                return operators[type(op)](self._number(left), self._number(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand)
        raise ValueError("no plain arithmetic")


def _trimmed(text: str, mark: str, pattern: str) -> str:
    """Expand ``${x%pattern}`` and its relatives: cut the shortest or longest matching end."""
    cuts = range(len(text) + 1)
    if mark[0] == "%":
        fits = [cut for cut in cuts if fnmatchcase(text[cut:], pattern)]
        return text if not fits else text[: max(fits) if mark == "%" else min(fits)]
    fits = [cut for cut in cuts if fnmatchcase(text[:cut], pattern)]
    return text if not fits else text[min(fits) if mark == "#" else max(fits) :]
