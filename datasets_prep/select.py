"""Filter a dataset by a rule, by the pass rate of a served model, or by both."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import repeat, tee
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from datasets_prep.carry import Carrier
from datasets_prep.outputs import check_new, opened, refuse_empty, refuse_repeated_ids
from datasets_prep.pass_rate import PassRates, without_media
from datasets_prep.record_files import BadRecordError, map_pieces, record_files, rows_of
from mmr1.data.ids import hash64
from mmr1.data.lines import Piece, pieces
from mmr1.progress import Progress
from mmr1.types import Sample
from mmr1.vision.images import image_size

FAILURES = (TemplateError, TypeError, ArithmeticError, LookupError, AttributeError)
"""What the evaluation of a user's expression or template raises, as ``1 / 0`` does."""


def keep(path: Path, output: Path, expression: str) -> tuple[int, int]:
    """Write the records that satisfy a rule; returns how many, and of how many.

    Raises:
        ValueError: The rule is not valid, a record cannot be used, or the output exists.
    """
    rule(expression)
    check_new(output)
    files = record_files(path)
    kept = total = 0
    ids: list[array[int]] = []
    extra = repeat((expression, output.parent))
    with opened(output) as file:
        for lines, hashes, count in map_pieces(carry_kept, files, "filtering", extra):
            file.write(lines)
            ids.append(hashes)
            kept, total = kept + len(hashes), total + count
        refuse_empty(path, total)
        refuse_repeated_ids(path, files, ids)
    return kept, total


def carry_kept(piece: Piece, expression: str, folder: Path) -> tuple[bytes, array[int], int]:
    """Lines of the records of a piece that satisfy the rule, hashes of their ids, and the total."""
    lines, ids, total = bytearray(), array("Q"), 0
    carrier, root = Carrier(folder), piece.path.parent
    for row, sample, matches in judged(piece, expression):
        total += 1
        if matches:
            ids.append(hash64(sample.id))
            lines += carrier.line(row, root)
    return bytes(lines), ids, total


def judged(piece: Piece, expression: str | None) -> Iterator[tuple[Any, Sample, bool]]:
    """``(row, sample, whether it satisfies the rule)`` of every record of a piece.

    Raises:
        BadRecordError: A line is not a valid record, or the rule fails on it.
    """
    matches = rule(expression) if expression is not None else lambda sample: True
    for position, row, sample in rows_of(piece):
        try:
            verdict = matches(sample)
        except ValueError as error:
            raise BadRecordError(piece.path, position, str(error)) from error
        yield row, sample, verdict


def keep_band(
    path: Path,
    output: Path,
    expression: str | None,
    pass_rates: PassRates,
    band: tuple[float, float],
    needs_media: bool = False,
) -> tuple[int, int]:
    """Write the records whose pass rate is in the band, with the rate in ``meta``.

    Args:
        path: A record file, or a folder of them.
        output: The record file to write.
        expression: A rule that they also satisfy; None for none.
        pass_rates: Asks a served model.
        band: The lowest and the highest pass rate.
        needs_media: Without its media a record has to have a lower pass rate, which goes into
            ``meta`` too.

    Returns:
        How many records were written, and of how many.

    Raises:
        ValueError: As :func:`keep`; or the server fails.
    """
    if expression is not None:
        rule(expression)
    check_new(output)
    files = record_files(path)
    kept = total = 0

    def asked() -> Iterator[tuple[Path, Any, Sample]]:
        nonlocal total
        for piece in pieces(files):
            for row, sample, matches in judged(piece, expression):
                total += 1
                if matches and (sample.media or not needs_media):
                    yield piece.path, row, sample

    def in_band(progress: Progress) -> Iterator[tuple[Path, Any, Sample]]:
        records, samples = tee(asked())
        rates = pass_rates.of(sample for _, _, sample in samples)
        for (source, row, sample), rate in zip(records, rates, strict=True):
            progress.advance(1)
            if band[0] <= rate <= band[1]:
                row.setdefault("meta", {})["pass_rate"] = rate
                yield source, row, sample

    ids: list[array[int]] = [array("Q")]
    with opened(output) as file, Progress("sampling answers", "samples") as progress:
        chosen = in_band(progress)
        for source, row, sample in needing_media(chosen, pass_rates) if needs_media else chosen:
            file.write(Carrier(output.parent).line(row, source.parent))
            ids[0].append(hash64(sample.id))
            kept += 1
        refuse_empty(path, total)
        refuse_repeated_ids(path, files, ids)
    return kept, total


def needing_media(
    records: Iterator[tuple[Path, Any, Sample]], pass_rates: PassRates
) -> Iterator[tuple[Path, Any, Sample]]:
    """The records whose pass rate is lower without their media; that rate goes into ``meta``."""
    records, samples = tee(records)
    rates = pass_rates.of(without_media(sample) for _, _, sample in samples)
    for (source, row, sample), rate in zip(records, rates, strict=True):
        if rate < row["meta"]["pass_rate"]:
            row["meta"]["pass_rate_without_media"] = rate
            yield source, row, sample


@lru_cache(maxsize=8)
def rule(expression: str) -> Callable[[Sample], bool]:
    """A predicate on samples from a jinja expression, compiled once per process.

    Its variables are ``id``, ``task``, ``source``, ``answer``, ``question``, ``images``,
    ``videos``, ``width`` and ``height`` (of the first image) and ``meta``.

    Raises:
        ValueError: The expression is not valid, or fails on a sample.
    """
    environment = ImmutableSandboxedEnvironment()
    try:
        holds = environment.compile_expression(expression, undefined_to_none=True)
    except TemplateError as error:
        raise ValueError(f"the rule '{expression}': {error}") from error

    def matches(sample: Sample) -> bool:
        try:
            return bool(holds(**variables(sample)))
        except FAILURES as error:
            raise ValueError(f"the rule '{expression}' fails: {error}") from error

    return matches


def variables(sample: Sample) -> dict[str, object]:
    """What rules and questions may name of a sample."""
    images = [m for m in sample.media if m.kind == "image"]
    width, height = (images[0].size or image_size(images[0])) if images else (None, None)
    return {
        "id": sample.id,
        "task": sample.task,
        "source": sample.source,
        "answer": sample.answer,
        "question": sample.question,
        "images": len(images),
        "videos": sum(m.kind == "video" for m in sample.media),
        "width": width,
        "height": height,
        "meta": dict(sample.meta),
    }
