"""Convert a dataset: in parallel, resumable, byte-identical however often it was interrupted.

Rows are worked off in numbered chunks. Each finished chunk is a file under ``.parts``; a run that
finds such files of the same plan goes on from there. Joining them in order makes the output, so
neither the number of workers nor an interruption can show in it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from datasets_prep.converters.base import CONVERTERS, Changed, Converter
from datasets_prep.download import fetch_media
from datasets_prep.finish import finish
from datasets_prep.manifest import file_hash, read_manifest, write_manifest
from datasets_prep.parquet import write_parquet
from datasets_prep.progress import Progress
from mmr1.data.forms import Place
from mmr1.data.record import atomic, dump
from mmr1.data.schema import VERSION
from mmr1.types import Sample

CHUNK = 64
RECORDS = "records.jsonl"
QUARANTINE = "quarantine.jsonl"

Numbered = tuple[int, str, str, Any]
"""Number of a row in the dataset, where it stands, its media root, and the row."""


@dataclass(frozen=True)
class Plan:
    """What decides the output; a run may go on where another one of the same plan stopped."""

    name: str
    files: tuple[Path, ...]
    output: Path
    media_root: Path | None
    embed: bool
    hosts: tuple[str, ...] = ()

    def facts(self, source: Path) -> dict[str, Any]:
        """The plan as JSON values, free of places, the inputs by content."""
        root = source.parent if source.is_file() else source
        return {
            "converter": self.name,
            "schema_version": VERSION,
            "embed": self.embed,
            "inputs": {p.relative_to(root).as_posix(): file_hash(p) for p in self.files},
        }


def convert(
    name: str,
    source: Path,
    output: Path,
    media_root: Path | None = None,
    workers: int | None = None,
    embed: bool = False,
    hosts: tuple[str, ...] = (),
    parquet: bool = False,
) -> dict[str, Any]:
    """Convert ``source`` with the converter ``name`` into ``output``; returns the manifest.

    Args:
        name: Converter.
        source: File or folder.
        output: Folder for records, media, ``quarantine.jsonl`` and ``manifest.json``.
        media_root: What media paths are relative to; by default the folder of their rows.
        workers: Processes; one per core by default.
        embed: Put the media into the records instead of beside them.
        hosts: Media may be downloaded from these hosts; from none by default.
        parquet: Write ``records.parquet`` too, media embedded.

    Raises:
        ValueError: No such converter or input, the output holds something else, or no row at all
            could be used (the manifest and ``quarantine.jsonl`` then say why).
    """
    converter: Converter = CONVERTERS.load(name)
    if not source.exists():
        raise ValueError(f"{source} does not exist; name the dataset's file or folder")
    plan = Plan(name, tuple(converter.find(source)), output, media_root, embed, hosts)
    facts = plan.facts(source)
    if (done := _start(output, facts)) is not None:
        return done
    _work(converter, plan, workers or os.cpu_count() or 1)
    return _join(converter, plan, facts, parquet)


def _start(output: Path, facts: dict[str, Any]) -> dict[str, Any] | None:
    """Make or re-enter the output folder; the manifest where everything is done already."""
    parts = output / ".parts"
    if (parts / "plan.json").is_file():
        if json.loads((parts / "plan.json").read_text()) != facts:
            raise ValueError(
                f"{output} holds an unfinished conversion of something else; remove it"
            )
        return None
    if (manifest := read_manifest(output)) is not None and manifest.get("plan") == facts:
        return manifest
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"{output} holds something else; remove it or name another --output")
    parts.mkdir(parents=True, exist_ok=True)
    with atomic(parts / "plan.json") as file:
        json.dump(facts, file)
    return None


def numbered_rows(converter: Converter, plan: Plan) -> Iterator[Numbered]:
    """Every row of every input file, numbered through."""
    number = 0
    for path in plan.files:
        root = str(plan.media_root or path.parent)
        for where, row in converter.rows(path):
            yield number, where, root, row
            number += 1


def _work(converter: Converter, plan: Plan, workers: int) -> None:
    """Have every chunk done that is not done yet."""
    with Progress(f"converting {plan.name}", "rows") as progress:
        if workers == 1:
            for part, block in _open_chunks(converter, plan, progress):
                progress.advance(_convert_chunk(plan, part, block))
        else:
            _work_in_parallel(converter, plan, workers, progress)


def _work_in_parallel(converter: Converter, plan: Plan, workers: int, progress: Progress) -> None:
    """The same in processes, a bounded number of chunks under way at a time."""
    under_way: set[Future[int]] = set()
    # Spawned, not forked: nothing of this process (threads, open files) leaks into the workers.
    with ProcessPoolExecutor(workers, get_context("spawn"), _die_with_parent) as pool:
        for part, block in _open_chunks(converter, plan, progress):
            under_way.add(pool.submit(_convert_chunk, plan, part, block))
            while len(under_way) >= 2 * workers:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                progress.advance(sum(future.result() for future in done))
        for future in under_way:
            progress.advance(future.result())


def _open_chunks(
    converter: Converter, plan: Plan, progress: Progress
) -> Iterator[tuple[Path, list[Numbered]]]:
    """The chunks that no run has finished, each with the file its outcome goes to."""
    rows = numbered_rows(converter, plan)
    for chunk in count():
        if not (block := list(islice(rows, CHUNK))):
            return
        part = plan.output / ".parts" / f"{chunk:06d}.json"
        if part.is_file():
            progress.advance(len(block))
        else:
            yield part, block


def _die_with_parent() -> None:
    """Let a killed run take its workers along (Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _convert_chunk(plan: Plan, part: Path, rows: list[Numbered]) -> int:
    """Convert some rows and write what became of them; returns their number."""
    converter: Converter = CONVERTERS.load(plan.name)
    lines: list[str] = []
    dropped: list[dict[str, str]] = []
    changed: Counter[str] = Counter()
    for number, where, root, row in rows:
        try:
            if isinstance(row, ValueError):
                raise row
            row = fetch_media(row, plan.hosts)
            place = Place(Path(root), plan.name, number)
            for result in _converted(converter, row, place):
                if isinstance(result, Changed):
                    changed[result.change] += 1
                    result = result.sample
                lines.append(finish(result, plan.output, plan.embed))
        except ValueError as error:
            dropped.append({"row": where, "reason": str(error)})
    with atomic(part) as file:
        outcome = {"rows": len(rows), "lines": lines, "dropped": dropped, "changed": changed}
        json.dump(outcome, file, ensure_ascii=False)
    return len(rows)


def _converted(converter: Converter, row: Any, place: Place) -> Iterator[Sample | Changed]:
    """The samples of a row, from the second on with a number behind the row's id."""
    if not isinstance(row, dict):
        raise ValueError(f"a row is a JSON object, not {type(row).__name__}")
    try:
        results = list(converter.convert(row, place))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not of the form of '{converter.name}': {error!r}") from error
    for number, result in enumerate(results):
        sample = result.sample if isinstance(result, Changed) else result
        if number:
            sample = Sample(
                f"{sample.id}.{number}", sample.messages, sample.answer, sample.task,
                sample.source, sample.meta,
            )  # fmt: skip
        yield Changed(sample, result.change) if isinstance(result, Changed) else sample


def _join(converter: Converter, plan: Plan, facts: dict[str, Any], parquet: bool) -> dict[str, Any]:
    """The chunks in order to the records, the quarantine and the manifest."""
    parts = sorted((plan.output / ".parts").glob("[0-9]*.json"))
    counts = {"rows": 0, "records": 0, "dropped": 0}
    changed: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with atomic(plan.output / RECORDS) as records, atomic(plan.output / QUARANTINE) as quarantine:
        for part in parts:
            outcome = json.loads(part.read_text(encoding="utf-8"))
            records.writelines(line + "\n" for line in outcome["lines"])
            quarantine.writelines(dump(entry) + "\n" for entry in outcome["dropped"])
            counts["rows"] += outcome["rows"]
            counts["records"] += len(outcome["lines"])
            counts["dropped"] += len(outcome["dropped"])
            changed.update(outcome["changed"])
            reasons.update(reason_class(entry["reason"]) for entry in outcome["dropped"])
    if parquet:
        write_parquet(plan.output / RECORDS, plan.output / "records.parquet")
    description = {
        "name": plan.name,
        "source": converter.source,
        "licence": converter.licence,
        "counts": counts,
        "changed": dict(changed.most_common()),
        "dropped": dict(reasons.most_common()),
        "plan": facts,
    }
    write_manifest(plan.output, description, skip=".parts")
    shutil.rmtree(plan.output / ".parts")
    if not counts["records"]:
        first = json.loads((plan.output / QUARANTINE).read_text().split("\n")[0])
        raise ValueError(
            f"none of the {counts['rows']} rows could be converted; the first: {first['row']}: "
            f"{first['reason']} (all in {plan.output / QUARANTINE})"
        )
    manifest = read_manifest(plan.output)
    assert manifest is not None
    return manifest


def reason_class(reason: str) -> str:
    """A reason without the names and numbers of the row, for counting.

    >>> reason_class("media file './a/1.png' does not exist under /data; unpack it")
    "media file '…' does not exist under …"
    """
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", reason.split(";")[0])
    text = re.sub(r"(?<!\w)/\S+", "…", text)
    return re.sub(r"\d+(?:\.\d+)?", "N", text)
