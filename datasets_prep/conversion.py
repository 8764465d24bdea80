"""Run a converter over a dataset: in parallel, and resumable.

The rows are divided into numbered chunks. The result of each chunk is a file under ``.parts``. A
conversion that was interrupted skips the chunks that have such a file. At the end the files are
joined in order. So the output has the same bytes for any number of workers and interruptions.

``datasets_prep/converters/base.py`` defines what a converter is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, get_args

from datasets_prep.converters.base import Converter
from datasets_prep.converters.rows import converter_of
from datasets_prep.download import fetch_media
from datasets_prep.finish import finish
from datasets_prep.manifest import NAME as MANIFEST
from datasets_prep.manifest import read_manifest, write_manifest
from mmr1.data.contents import described, media_class, unread_columns
from mmr1.data.forms import shortened
from mmr1.data.forms.boxes import BoxTally
from mmr1.data.forms.form import CHANGED, Place
from mmr1.data.readers import media_folder
from mmr1.data.readers.hub import is_saved
from mmr1.data.record import dump, dump_parsed, parse_json
from mmr1.data.schema import VERSION
from mmr1.files import atomic, atomic_binary, sha256_of
from mmr1.machine import cores
from mmr1.parallel import in_order, one_pool
from mmr1.progress import Progress
from mmr1.types import MediaKind, Sample

CHUNK = 64  # rows of the first pieces, so that a small dataset has one for every core
GROWTH, LARGEST = 32, 16  # after so many pieces they grow by a CHUNK, to at most so many
RECORDS = "records.jsonl"
QUARANTINE = "quarantine.jsonl"

Numbered = tuple[int, str, str, Any]
"""A row's number in the dataset, its location for messages, its media root, and the row."""


@dataclass(frozen=True)
class Plan:
    """All inputs of a conversion. Only a conversion with an equal plan is resumed."""

    name: str
    files: tuple[Path, ...]
    output: Path
    media_root: Path | None
    embed: bool
    hosts: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    split: str | None = None

    @property
    def converter(self) -> Converter:
        """The converter, which knows the columns that were named."""
        return converter_of(self.name, dict(self.columns))

    def describe(self, source: Path) -> dict[str, Any]:
        """The plan as JSON values: no absolute paths, and the inputs by their hashes."""
        root = source.parent if source.is_file() else source
        facts = {
            "converter": self.name,
            "schema_version": VERSION,
            "embed": self.embed,
            "inputs": {
                p.relative_to(root).as_posix(): sha256_of(p).hex()
                for path in self.files
                for p in _files_behind(path)
            },
            "media_root": self.media_root and os.path.relpath(self.media_root, root),
            "hosts": sorted(self.hosts) or None,
            "split": self.split,
            "columns": dict(self.columns) or None,
        }
        return {key: fact for key, fact in facts.items() if fact is not None}


def _files_behind(path: Path) -> list[Path]:
    """The file itself; for a folder its files, for one of ``datasets`` those with rows."""
    if path.is_file():
        return [path]
    folder = path if path.is_dir() else media_folder(path)
    names = "data-*.arrow" if is_saved(folder) else "*"
    return sorted(p for p in folder.rglob(names) if p.is_file())


@one_pool()
def convert(
    name: str,
    source: Path,
    output: Path,
    media_root: Path | None = None,
    workers: int | None = None,
    embed: bool = False,
    hosts: tuple[str, ...] = (),
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Convert ``source`` with the converter ``name`` into ``output``; returns the manifest.

    Args:
        name: The converter, or the format of the rows.
        source: The dataset's file or folder.
        output: Folder for records, media, ``quarantine.jsonl`` and ``manifest.json``.
        media_root: Folder that media paths are relative to; by default that of the rows.
        workers: Processes; one per core by default.
        embed: Put the media into the records instead of files beside them.
        hosts: Hosts from which media may be downloaded.
        split: Split of a folder with several.
        columns: The columns by field; see :func:`converter_of`.

    Raises:
        ValueError: If the converter or the input does not exist, the output folder holds something
            else, or no row could be used (``quarantine.jsonl`` has the reasons).
    """
    converter = converter_of(name, columns)
    if not source.exists():
        raise ValueError(
            f"{source} does not exist; name the dataset's file or folder (one of the Hugging Face "
            f"Hub after hf download NAME --repo-type dataset --local-dir FOLDER)"
        )
    files, of_rows = converter.find(source, split)
    named = tuple((columns or {}).items())
    plan = Plan(name, tuple(files), output, media_root, embed, hosts, named, of_rows)
    plan_facts = plan.describe(source)
    if (manifest := _start(output, plan_facts)) is not None:
        return manifest
    _convert_chunks(converter, plan, workers or cores())
    return _join(converter, plan, plan_facts)


def _start(output: Path, plan_facts: dict[str, Any]) -> dict[str, Any] | None:
    """Prepare the output folder; returns the manifest if the conversion is already finished."""
    outcome_files = output / ".parts"
    if (outcome_files / "plan.json").is_file():
        if json.loads((outcome_files / "plan.json").read_text()) == plan_facts:
            return None
        if len(list(outcome_files.iterdir())) > 1:
            raise ValueError(
                f"{output} holds an unfinished conversion of something else; remove it"
            )
        shutil.rmtree(outcome_files)  # it failed at its first row
    manifest = read_manifest(output)
    if manifest is not None and "plan" in manifest and not manifest["counts"]["records"]:
        _clear(output)  # a conversion that found nothing to use is begun again
    elif manifest is not None and manifest.get("plan") == plan_facts:
        return manifest
    elif output.exists() and any(output.iterdir()):
        before = (manifest or {}).get("plan")
        held = "something else" if before is None else _differences(before, plan_facts)
        raise ValueError(f"{output} holds {held}; remove it or name another --output")
    outcome_files.mkdir(parents=True, exist_ok=True)
    with atomic(outcome_files / "plan.json") as file:
        json.dump(plan_facts, file)
    return None


def _clear(output: Path) -> None:
    """Remove the files of a conversion that has no records, which has no others."""
    for name in (RECORDS, QUARANTINE, MANIFEST):
        (output / name).unlink(missing_ok=True)
    shutil.rmtree(output / "media", ignore_errors=True)


def _differences(before: dict[str, Any], plan_facts: dict[str, Any]) -> str:
    """The facts in which a finished conversion differs."""
    other = sorted(k for k in {*before, *plan_facts} if before.get(k) != plan_facts.get(k))
    return f"a conversion with another {', '.join(other)}"


def numbered_rows(converter: Converter, plan: Plan) -> Iterator[Numbered]:
    """The rows of all input files, numbered consecutively; of one split where they name theirs.

    Raises:
        ValueError: The rows are of several splits, and none was named.
    """
    number = 0
    splits: set[Any] = set()
    for path in plan.files:
        root = str(plan.media_root or (media_folder(path) if converter.files else path))
        for where, row in converter.rows(path):
            own = row.get("split") if isinstance(row, dict) else None
            splits.add(own)
            if plan.split is None and isinstance(own, str) and len(splits - {None}) > 1:
                shown = ", ".join(sorted(map(str, splits - {None})))
                raise ValueError(
                    f"{path} has rows of several splits ({shown}, …); name one with --split, and "
                    f"remove {plan.output}"
                )
            if plan.split is None or own == plan.split:
                yield number, where, root, row
                number += 1
    if not number and plan.split is not None:
        shown = ", ".join(sorted(str(split) for split in splits if split is not None)) or "none"
        raise ValueError(f"no row is of the split '{plan.split}'; the rows name {shown}")


def _convert_chunks(converter: Converter, plan: Plan, workers: int) -> None:
    """Convert every chunk that has no outcome file yet."""
    with Progress(f"converting {plan.name}", "rows") as progress:
        chunks = _unfinished_chunks(converter, plan, progress)
        jobs = ((plan, outcome_file, block) for outcome_file, block in chunks)
        for number, outcome in enumerate(in_order(_convert_chunk, jobs, workers)):
            if number == 0:
                first = f"{plan.name}: of the first {outcome.rows:,} row(s)"
                print(described(first, outcome.media, outcome.unread), file=sys.stderr)
            progress.advance(outcome.rows)


def _unfinished_chunks(
    converter: Converter, plan: Plan, progress: Progress
) -> Iterator[tuple[Path, list[Numbered]]]:
    """The chunks without an outcome file, each with the path of that file."""
    rows = numbered_rows(converter, plan)
    for chunk in count():
        size = CHUNK * min(1 + chunk // GROWTH, LARGEST)
        if not (block := list(islice(rows, size))):
            return
        outcome_file = plan.output / ".parts" / f"{chunk:06d}.json"
        if outcome_file.is_file() and outcome_file.stat().st_size:  # 0: the machine had crashed
            progress.advance(len(block))
        else:
            yield outcome_file, block


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a chunk: its rows, records by their media, and columns that nothing read."""

    rows: int
    media: dict[str, int]
    unread: list[str]


def _convert_chunk(plan: Plan, outcome_file: Path, rows: list[Numbered]) -> _Outcome:
    """Convert the rows of a chunk and write the outcome file."""
    converter = plan.converter
    lines: list[str] = []
    dropped: list[dict[str, str]] = []
    changed: Counter[str] = Counter()
    kinds: Counter[tuple[str, ...]] = Counter()
    unread: dict[str, None] = {}
    boxes = BoxTally()
    named = _named_columns(plan.columns)
    roots = {root: Path(root) for _, _, root, _ in rows}
    media_columns = [column for field, column in plan.columns if field in get_args(MediaKind)]
    fetched = partial(fetch_media, hosts=plan.hosts, more=media_columns)
    for number, where, root, row in rows:
        try:
            if isinstance(row, ValueError):
                raise row
            place = Place(roots[root], plan.name, number)
            for result in _samples_of(converter, fetched, row, place):
                if change := result.meta.get(CHANGED):
                    changed[change] += 1
                lines.append(finish(result, plan.output, plan.embed))
                boxes.add(result)
                kinds[tuple([ref.kind for ref in result.media])] += 1
                if left := unread_columns(row, result, named):
                    unread |= dict.fromkeys(left)
        except ValueError as error:
            boxes.add(error)
            reason = (
                shortened(str(error)).encode(errors="backslashreplace").decode()
            )  # it may quote a key
            dropped.append({"row": where, "reason": reason})
    outcome = {"rows": len(rows), "lines": lines, "dropped": dropped, "changed": changed}
    media: Counter[str] = Counter()
    for of_sample, samples in kinds.items():
        media[media_class(of_sample)] += samples
    outcome |= {
        "media": media,
        "unread": list(unread),
        "boxes": [boxes.inside, boxes.outside, boxes.fits, boxes.extents],
    }
    with atomic_binary(outcome_file, sync=False) as (file,):  # a disk takes longer than the rows
        file.write(dump_parsed(outcome))
    return _Outcome(len(rows), dict(media), list(unread))


def _named_columns(columns: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The columns that ``--map`` names, those of media under the names of EasyR1's rows."""
    named: dict[str, str] = {}
    for field, column in columns:
        for number, one in enumerate(column.split(",")):
            plural = f"{field}s" if field in get_args(MediaKind) else field
            named[f"{plural}{number or ''}"] = one
    return named


def _samples_of(
    converter: Converter, fetched: Callable[[Any], Any], row: Any, place: Place
) -> Iterator[Sample]:
    """The samples of a row; from the second on their ids end in a number."""
    if not isinstance(row, dict):
        raise ValueError(f"a row is a JSON object, not {type(row).__name__}")
    try:
        results = list(converter.convert(fetched(row), place))
    except ValueError:
        raise
    except Exception as error:  # a value of another type than the dataset has, anywhere in the row
        raise ValueError(f"not a row of '{converter.name}': {error!r}") from error
    for number, sample in enumerate(results):
        yield replace(sample, id=f"{sample.id}.{number}") if number else sample


def _join(converter: Converter, plan: Plan, plan_facts: dict[str, Any]) -> dict[str, Any]:
    """Join the outcomes in order into the records, the quarantine and the manifest."""
    outcome_files = sorted((plan.output / ".parts").glob("[0-9]*.json"))
    counts = {"rows": 0, "records": 0, "dropped": 0}
    changed: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    media: Counter[str] = Counter()
    unread: dict[str, None] = {}
    _check_boxes(plan, outcome_files)
    with atomic(plan.output / RECORDS) as records, atomic(plan.output / QUARANTINE) as quarantine:
        for outcome_file in outcome_files:
            outcome = parse_json(outcome_file.read_bytes())
            records.writelines(line + "\n" for line in outcome["lines"])
            quarantine.writelines(dump(entry) + "\n" for entry in outcome["dropped"])
            counts["rows"] += outcome["rows"]
            counts["records"] += len(outcome["lines"])
            counts["dropped"] += len(outcome["dropped"])
            changed.update(outcome["changed"])
            media.update(outcome["media"])
            unread |= dict.fromkeys(outcome["unread"])
            reasons.update(reason_class(entry["reason"]) for entry in outcome["dropped"])
    description = {
        "name": plan.name,
        "source": converter.source,
        "licence": converter.licence,
        "counts": counts,
        "records_by_media": dict(media.most_common()),
        "columns_not_read": list(unread),
        "changed": dict(changed.most_common()),
        "dropped": dict(reasons.most_common()),
        "plan": plan_facts,
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


def _check_boxes(plan: Plan, outcome_files: Sequence[Path]) -> None:
    """Raises ValueError, and leaves nothing behind, if most gold boxes are of another space."""
    tally = BoxTally()
    for outcome_file in outcome_files:
        inside, outside, fits, extents = parse_json(outcome_file.read_bytes())["boxes"]
        tally.merge(BoxTally(inside, outside, Counter(fits), extents))
    try:
        tally.check(str(plan.files[0]))
    except ValueError:
        shutil.rmtree(plan.output)
        raise


def reason_class(reason: str) -> str:
    """A reason without the row's names and numbers, so that equal reasons can be counted.

    >>> reason_class("media file './a/1.png' does not exist under /data; unpack it")
    "media file '…' does not exist under …"
    """
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", reason.split(";")[0])
    text = re.sub(r"(?<!\w)/\S+", "…", text)
    return re.sub(r"\d+(?:\.\d+)?", "N", text)
