"""Migrate every example of another project, and say which are refused.

python scripts/dev/migrate_examples.py verl/examples --from verl
python scripts/dev/migrate_examples.py trl --from trl --keys examples.yaml NAME ...

Reads ``*.sh`` and ``*.yaml``, and the command lines in the docstrings and texts of ``*.py``,
``*.md`` and ``*.mdx``. With
``--keys`` the keys of the examples whose path contains one of the names are written to a file, as
``tests/contrib/migrate/examples`` has them. Exits with 1 when a file is refused that starts the
project.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from mmr1_contrib.migrate.reading import Given, read
from mmr1_contrib.migrate.source import migrate
from mmr1_contrib.migrate.sources import PROJECTS, sources_of

COMMAND = re.compile(
    r"^[ ]*(?:[A-Z_]+=\S+ )*(?:trl|accelerate|python3?|deepspeed) (?:.*\\\n)*.*$", re.M
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--from", dest="project", choices=PROJECTS, required=True)
    parser.add_argument("--keys", type=Path)
    options = parser.parse_intermixed_args()
    migrated, refused, others = 0, 0, 0
    kept = {}
    for name, text in _examples(options.folder):
        given, problem = _migrated(name, text, options.project)
        if given is not None:
            migrated += 1
            if any(wanted in name for wanted in options.names):
                kept[f"{name} {given.source.kind}".strip()] = _nested(given.keys)
        elif re.match("no command|these are not keys|several trainers", problem):
            others += 1
        else:
            refused += 1
            print(f"{name}: {problem}")
    print(f"{migrated} migrated, {refused} refused, {others} of something else")
    if options.keys:
        lines = [
            f"{n}:\n  {yaml.safe_dump(k, default_flow_style=True, width=96)}"
            for n, k in kept.items()
        ]
        options.keys.write_text("".join(lines))
    sys.exit(refused > 0)


def _examples(folder: Path) -> Iterator[tuple[str, str]]:
    """Files, and the commands in the texts of files."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".sh", ".yaml", ".yml"):
            yield name, path.read_text()
        elif path.suffix in (".py", ".md", ".mdx"):
            for number, command in enumerate(COMMAND.findall(path.read_text())):
                yield f"{name}#{number}.sh", command


def _migrated(name: str, text: str, project: str) -> tuple[Given | None, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        path.write_text(text)
        try:
            given = read(path, [], sources_of(project), named=True)
            migrate(given.source, given.keys)
        except ValueError as error:
            return None, str(error)
    return given, ""


def _nested(keys: dict) -> dict:
    tree: dict = {}
    for key, value in keys.items():
        *sections, name = key.split(".")
        section = tree
        for section_name in sections:
            section = section.setdefault(section_name, {})
        section[name] = value
    return tree


if __name__ == "__main__":
    main()
