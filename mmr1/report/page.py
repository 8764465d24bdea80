"""``mmr1 report``: one self-contained HTML file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mmr1.files import atomic
from mmr1.report.content import media_of, rollout_groups, summarise
from mmr1.report.findings import step_facts
from mmr1.report.run_reader import Run
from mmr1.report.thumbnails import Medium, Picture, fitting_side, thumbnails

SCRIPTS = (
    "elements.js",
    "source.js",
    "curves.js",
    "pictures.js",
    "filters.js",
    "cards.js",
    "rollouts.js",
    "main.js",
)
MEDIA_PER_BLOCK = 64
"""Thumbnails in one block of JSON, which the page parses when it first shows one of them."""


def write_report(
    runs: Sequence[Run],
    output: Path,
    media_bytes: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the report of one run, or of two side by side.

    Args:
        runs: One or two.
        output: The HTML file; it appears only once it is complete.
        media_bytes: Limit on the size of all thumbnails.
        progress: Called with the number of finished thumbnails and of all.

    Raises:
        ValueError: A file of a run is damaged. Names file and line.
    """
    rows = [{step: run.rollouts(step) for step in run.steps()} for run in runs]
    media: dict[str, Medium] = {}
    for run, steps in zip(runs, rows, strict=True):
        for step_rows in steps.values():
            media.update(media_of(run, step_rows))
    side = fitting_side(list(media.values()), media_bytes)
    pictures = thumbnails(media.values(), side, lambda done: progress(done, len(media)))
    chunks = {
        f"rollouts-{number}-{step}": pack(rollout_groups(run, step_rows, pictures.__getitem__))
        for number, (run, steps) in enumerate(zip(runs, rows, strict=True))
        for step, step_rows in steps.items()
    }
    blocks = _blocks(pictures)
    summary = {
        **summarise(runs, [{s: step_facts(of_step) for s, of_step in r.items()} for r in rows]),
        "live": False,
        "blocks": {digest: index for index, block in enumerate(blocks) for digest in block},
    }
    with atomic(output) as file:
        file.write(render(summary, chunks, blocks))


def _blocks(pictures: Mapping[str, Picture]) -> list[dict[str, Picture]]:
    digests = list(pictures)
    return [
        {digest: pictures[digest] for digest in digests[start : start + MEDIA_PER_BLOCK]}
        for start in range(0, len(digests), MEDIA_PER_BLOCK)
    ]


def render(
    summary: Mapping[str, Any],
    chunks: Mapping[str, str] | None = None,
    blocks: Sequence[Mapping[str, Picture]] = (),
) -> str:
    """The page as HTML. A live page has no ``chunks`` and ``blocks``; it requests them."""
    environment = Environment(
        loader=PackageLoader("mmr1.report", "assets"), autoescape=True, undefined=StrictUndefined
    )
    scripts = [asset(name) for name in SCRIPTS]
    return environment.get_template("report.html.jinja").render(
        title=" and ".join(run["name"] for run in summary["runs"]),
        style=Markup(asset("report.css")),
        scripts=[Markup(script) for script in scripts],
        script_hashes=Markup(" ".join(map(_csp_hash, scripts))),
        summary=Markup(script_json(summary)),
        chunks={name: Markup(text) for name, text in (chunks or {}).items()},
        blocks=[Markup(script_json(block)) for block in blocks],
        connect=Markup("'self'" if summary["live"] else "'none'"),
    )


def _csp_hash(script: str) -> str:
    """The hash of a script in the page's content security policy, which allows no other script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def asset(name: str) -> str:
    """A file of this package that is inserted into the page unchanged."""
    text = files("mmr1.report").joinpath("assets", name).read_text(encoding="utf-8")
    assert "</script" not in text, name
    assert "</style" not in text, name
    return text


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: it cannot end it or begin a comment.

    >>> script_json("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    text = to_json(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def to_json(value: Any) -> str:
    """Compact JSON; lone surrogates, which UTF-8 cannot encode, become ``?``."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


def pack(value: Any) -> str:
    """JSON, compressed by gzip, in base64. Equal values give equal text."""
    packed = gzip.compress(to_json(value).encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode()
