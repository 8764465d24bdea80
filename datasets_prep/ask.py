"""Ask a served model about each record; its reply becomes a column, or the assistant's answer.

Several such steps make data: a picture described in words, reasoning over the description, and the
verdict of a judge on it, by which ``mmr1-data filter`` then chooses.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from datasets_prep.carry import Carrier
from datasets_prep.demonstrations import is_text, with_answer
from datasets_prep.outputs import check_new, opened, refuse_repeated_ids
from datasets_prep.record_files import BadRecordError, record_files, rows_of
from datasets_prep.select import FAILURES, variables
from datasets_prep.server import Server, in_order, prompt_of
from mmr1.data.ids import hash64
from mmr1.data.lines import Piece, pieces
from mmr1.data.placeholders import as_text
from mmr1.files import stamp
from mmr1.progress import Progress
from mmr1.rewards.judges.replies import Reply
from mmr1.templates import environment
from mmr1.types import MediaRef, Message, Sample, TextPart

Record = tuple[Piece, int, dict[str, Any], Sample]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of each record.

    Attributes:
        prompt: A Jinja template of the question, with the variables of :func:`variables` and
            ``reply``, the assistant's answer in the record.
        into: The column of ``meta`` that the reply becomes; None: the assistant's answer.
        media: The record's pictures and videos come before the question.
    """

    prompt: str
    into: str | None = None
    media: bool = True

    def message(self, sample: Sample) -> Message:
        last = sample.messages[-1]
        reply = last.text if last.role == "assistant" else ""
        try:
            text = environment().from_string(self.prompt).render(**variables(sample), reply=reply)
        except FAILURES as error:
            raise ValueError(f"--prompt fails: {error}") from error
        shown = [p for m in prompt_of(sample) for p in m.parts if isinstance(p, MediaRef)]
        return Message("user", (*(shown if self.media else ()), TextPart(text)))

    def takes(self, reply: Reply) -> bool:
        """Is it whole, and can it stand where it is to stand?"""
        whole = not reply.cut and bool(reply.text.strip())
        return whole and (self.into is not None or is_text(reply.text))

    def answered(self, row: dict[str, Any], text: str) -> dict[str, Any]:
        """The record with the reply."""
        if self.into is None:
            return with_answer(row, [{"role": "assistant", "content": as_text(text)}])
        meta = row.get("meta") or {}
        if self.into in meta:
            raise ValueError(f"{row['id']}: meta has '{self.into}'; name another column by --into")
        return {**row, "meta": {**meta, self.into: text}}


def ask(path: Path, output: Path, server: Server, question: Question) -> tuple[int, int]:
    """Write the records with their replies.

    A record is left out if its reply is empty or was cut off, or could not be an answer of the
    assistant, for it holds placeholders of media. An interrupted call is continued when it is
    repeated: what is done lies beside the output until then.

    Returns:
        How many records were written, and of how many.

    Raises:
        ValueError: The output exists, a record cannot be used, the template fails, the server
            fails, or no record is left.
    """
    check_new(output)
    files = record_files(path)
    settings = (question, server.sampling)
    digest = sha256(repr((settings, [(f, stamp(f)) for f in files])).encode()).hexdigest()
    part = output.with_name(f"{output.name}.{digest[:8]}.part")

    def reply(record: Record) -> Reply:
        piece, position, _, sample = record
        try:
            message = question.message(sample)
        except ValueError as error:
            raise BadRecordError(piece.path, position, str(error)) from error
        return server.replies([message], 1, sample.id)[0]

    output.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab+") as file, Progress("asking", "records") as progress:
        done = _whole_lines(file)
        progress.advance(done)
        for (piece, _, row, _), said in in_order(islice(_records(files), done, None), reply):
            line = b"\n"  # of a record that is left out
            if question.takes(said):
                line = Carrier(output.parent).line(
                    question.answered(row, said.text), piece.path.parent
                )
            file.write(line)
            file.flush()
            progress.advance(1)
    return _finish(part, output, path, files)


def _records(files: list[Path]) -> Iterator[Record]:
    for piece in pieces(files):
        for position, row, sample in rows_of(piece):
            yield piece, position, row, sample


def _whole_lines(file: Any) -> int:
    """How many there are; what was being written when the call was interrupted is cut off."""
    file.seek(0)
    count = end = 0
    for line in file:
        if line.endswith(b"\n"):
            count, end = count + 1, end + len(line)
    file.truncate(end)
    return count


def _finish(part: Path, output: Path, path: Path, files: list[Path]) -> tuple[int, int]:
    """Make the output of the lines that are records."""
    ids, total = array("Q"), 0
    with part.open("rb") as lines, opened(output) as file:
        for line in lines:
            total += 1
            if line.strip():
                file.write(line)
                ids.append(hash64(json.loads(line)["id"]))
        if not ids:
            raise ValueError(
                f"no reply of {total} to the records of {path} is whole; raise --max-tokens"
            )
        refuse_repeated_ids(path, files, [ids])
    part.unlink()
    return len(ids), total
