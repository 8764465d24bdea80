"""Count habits of English that the style page forbids, and print where they are.

    python scripts/dev/words.py mmr1 docs README.md    every hit, then a count by kind
    python scripts/dev/words.py                        the folders of words.json against its budgets
    python scripts/dev/words.py --write                lower the budgets to the counts

It reads docstrings, comments, string literals of four words or more, names and Markdown; not code
in backticks or fences. A line with ``words: ok`` in it is skipped. ``words.json`` beside it has the
most hits of each kind for each folder: a budget that only falls.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUDGETS = Path(__file__).with_name("words.json")

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
START = "Of|Those|Whose|That|What|Which|As|By|For|To|With|From|In|On|Also"
SECTION = re.compile(r"^\s*(?:Args|Attributes|Raises|Returns|Yields):$")
FIELD = re.compile(rf"^\s+\*{{0,2}}[\w.]+(?: \([^)]*\))?: (?:{START})\b")
RAISES = re.compile(r"^\s+\w+(?:Error|Exit): (?:It|They|Its|Their|There|One|Not)\b")
SUMMARY = re.compile(r"(?:Of|Those|Whose|That|What|Which|As|By|For|With|Where)\b")
COMPARED = "than below above to as by like with less equal equals equalled exceeds or note"
FINE = "longer|more|less|other|such|better|worse|way|need|doubt|point|reason|different|larger"
PROSE = {
    "that-of": "".join(rf"(?<!\b{word} )" for word in COMPARED.split())
    + r"\b(?:that|those) of\b|\bthose (?:which|it|they)\b",
    "is-none": rf"(?<![Tt]here )\b(?:is|are|was|were) (?:none\b(?! of)|no (?!(?:{FINE})\b)[a-z]+)",
    "idiom": r"\bl(?:ies?|ay) (?:in|at|under|there|beside)\b|\bin small(?=[.,;:)]|$)"
    r"|\b(?:is|are|was|were) (?:told\b(?! (?:to|apart))|meant so)|\bcomes? over\b"
    r"|\b(?:core|logged|kept|counted|treats?|loss) apart\b"
    r"|\b(?:None|0|True|False): (?:it|they|none|not|that|those|as)\b",
    "picture": r"\b[Pp]ictures?\b",
}
NAME = re.compile(r"_*(?:of_\w+|own|those|whose|what|said|told|apart|beside|mine|theirs|its)$")
TEST = re.compile(
    r"test_(?:\w+_)??(?:is|are)_(?:that|those|none|no|told|its)(?:_|$)|test_\w*_th(?:at|ose)_of_"
    r"|test_(?:of|those|that|what|whose|which|as|by|beside|under)_|test_\w+_ones_own"
)


def python_prose(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Constant)):
        if isinstance(node.value, str) and node.value.count(" ") > 2:
            for number, line in enumerate(node.value.splitlines(), node.lineno):
                yield number, re.sub(r":\w+:`[^`]*`|``?[^`]*``?|>>>.*", "x", line)


def markdown_prose(text: str) -> Iterator[tuple[int, str]]:
    text = re.sub(r"```.*?```", lambda fence: "\n" * fence[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "x", line)


def docstring_hits(node: Any) -> Iterator[tuple[int, str, str]]:
    lines, section = (ast.get_docstring(node, clean=False) or "").splitlines(), ""
    if lines and SUMMARY.match(lines[0]) and isinstance(node, DEFINITIONS):
        yield node.body[0].lineno, "summary-start", lines[0]
    for number, line in enumerate(lines):
        section = line.strip() if SECTION.match(line) else section if line.strip() else ""
        if section and FIELD.match(line):
            yield node.body[0].lineno + number, "field-start", line
        elif section == "Raises:" and RAISES.match(line):
            yield node.body[0].lineno + number, "raises-pronoun", line


def hits(path: Path) -> Iterator[tuple[int, str, str]]:
    text = path.read_text(encoding="utf-8")
    tree = None if path.suffix == ".md" else ast.parse(text)
    node: Any
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.Module, *DEFINITIONS)):
            yield from docstring_hits(node)
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        name = node.name if isinstance(node, DEFINITIONS) else node.id if stored else ""
        name = node.arg if isinstance(node, ast.arg) else name
        if kind := "name" if NAME.match(name) else "test-name" if TEST.match(name) else "":
            yield node.lineno, kind, name
    for number, line in python_prose(text, tree) if tree else markdown_prose(text):
        for kind, pattern in PROSE.items():
            for m in re.finditer(pattern, line):
                yield number, kind, line[max(m.start() - 40, 0) : m.end() + 40]


def found(folder: Path) -> Iterator[tuple[Path, int, str, str]]:
    """Yield file, line, kind and excerpt of each hit in a folder or a file."""
    for file in [folder] if folder.is_file() else sorted(folder.rglob("*")):
        if file.suffix in (".py", ".md"):
            lines = file.read_text("utf-8").splitlines()
            for number, kind, excerpt in sorted(hits(file)):
                if "words: ok" not in lines[number - 1]:
                    yield file, number, kind, excerpt.strip()


def counts(folder: Path) -> dict[str, int]:
    """Return the number of hits of each kind in a folder."""
    return dict(collections.Counter(kind for _, _, kind, _ in found(folder)))


def over(budgets: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield a line for each kind that has more hits in a folder than its budget."""
    for folder, budget in budgets.items():
        for kind, number in counts(ROOT / folder).items():
            if number > budget.get(kind, 0):
                yield f"{folder}: {number} of kind {kind}, budget {budget.get(kind, 0)}"


def lowered(budgets: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the budgets, none of them above its count."""
    new = {}
    for folder, budget in budgets.items():
        now = counts(ROOT / folder)
        new[folder] = {k: min(n, budget.get(k, n)) for k, n in sorted(now.items())}
    return new


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="print the hits in these")
    parser.add_argument("--kind", action="append", help="only this kind; may be repeated")
    parser.add_argument("--write", action="store_true", help="lower the budgets to the counts")
    args = parser.parse_args()
    if args.paths:
        total = collections.Counter[str]()
        for path in args.paths:
            for file, number, kind, excerpt in found(path):
                if not args.kind or kind in args.kind:
                    total[kind] += 1
                    print(f"{file}:{number}: {kind}: {excerpt}")
        print(*(f"{number:6} {kind}" for kind, number in total.most_common()), sep="\n")
        return 0
    budgets = json.loads(BUDGETS.read_text())
    if args.write:
        BUDGETS.write_text(json.dumps(lowered(budgets), indent=1) + "\n")
        return 0
    lines = list(over(budgets))
    print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
