"""Write the tables of docs/migration.md from the lists that ``mmr1 migrate`` uses.

python scripts/dev/migration_table.py            write them
python scripts/dev/migration_table.py --check    exit with 1 when they are not what they should be
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from page_table import write_or_check

from mmr1_contrib.migrate.r1v import FORKS
from mmr1_contrib.migrate.source import Source
from mmr1_contrib.migrate.sources import PROJECTS, SOURCES

PAGE = Path(__file__).parents[2] / "docs/migration.md"


def _tables() -> Iterator[tuple[str, list[str]]]:
    """Head and rows; of a project with several kinds no row stands twice.

    The former names of keys come first. Where a project has several kinds, what all of them have
    comes next, then the kinds, those with the most rows before the others.
    """
    for at, source in enumerate(SOURCES):
        if source.older and all(source.older != other.older for other in SOURCES[:at]):
            names = [f"| `{old}` | `{today}` |" for old, today in source.older.items()]
            kinds = [other for other in SOURCES if other.project == source.project]
            alike = all(other.older == source.older for other in kinds)
            title = source.title.split()[0] if alike else source.title
            yield f"{title}: former name | today", names
    for project in PROJECTS:
        kinds = {s.title: list(_rows(s)) for s in SOURCES if s.project == project}
        is_fork = project == FORKS[0].project  # of R1-V; what TRL's tables have is not repeated
        shown = {row for s in SOURCES if is_fork and s.kind == "trl-grpo" for row in _rows(s)}
        if len(kinds) > 1:
            first, *others = kinds.values()
            rows = [
                row for row in first if row not in shown and all(row in other for other in others)
            ]
            shown |= set(rows)
            yield f"all of {next(iter(kinds)).split()[0]} | its default | here", rows
        for title, rows in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
            if own := [row for row in rows if row not in shown]:
                yield f"{title} | its default | here", own
            shown |= set(rows)


def _rows(source: Source) -> Iterator[str]:
    meanings, defaults = _meanings(source), source.defaults
    for key in [*defaults, *(k for k in meanings if k not in defaults)]:
        default = str(defaults[key]) if key in defaults else ""
        yield f"| `{key}` | {default} | {meanings[key]} |"


def _meanings(source: Source) -> dict[str, str]:
    names = {
        key: f"`{ours}`: {', '.join(f'{theirs} is {value}' for theirs, value in values.items())}"
        for key, (ours, values) in source.translated.items()
    }
    same = {key: f"`{ours}`" for key, ours in source.renamed.items()}
    none = {key: f"none: {why}" for key, why in source.unneeded.items()}
    return {**same, **names, **source.composed, **none}


if __name__ == "__main__":
    for head, rows in _tables():
        write_or_check(PAGE, f"| {head} |", rows)
