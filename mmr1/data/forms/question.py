"""One question with one answer, and perhaps with options to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmr1.data.forms.assemble import assemble, stated_task
from mmr1.data.forms.columns import OPTIONS
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.option_columns import options_of
from mmr1.data.forms.options import Options, read_options
from mmr1.types import Sample


def assemble_question(
    row: Row,
    place: Place,
    question: str,
    answer: Any,
    *,
    images: Any = None,
    videos: Any = None,
    task: str | None,
    used: Sequence[str],
    untagged: bool = True,
    options: Any = None,
    system: str | None = None,
) -> Sample:
    """A sample of one question. With options it is a choice, and its answer becomes a letter.

    Args:
        row: See :func:`mmr1.data.forms.assemble.assemble`, also for the others.
        options: The options; by default those of the row, see :func:`options_of`.
        task: Task type without options.
        system: System prompt.

    Raises:
        ValueError: The answer is none of the options, or the row cannot be used.
    """
    columns: tuple[str, ...] = OPTIONS
    if options is None:
        choices, columns = options_of(row, answer)
    else:
        choices = options if isinstance(options, Options) else read_options(options)
    meta = {}
    if choices is not None:
        question = choices.ask(question)
        if stated_task(row) is None or task == "choice":
            named = f"options={','.join(c for c in columns if c in row)},answer_index=answer"
            task, answer = "choice", choices.gold(answer, named)
        meta = {"options": choices.for_reward}
    turns = [("user", question)] if not system else [("system", system), ("user", question)]
    return assemble(
        row, place, turns, images=images, videos=videos, answer=answer, task=task,
        used=(*used, *OPTIONS, *columns), untagged=untagged, meta=meta,
    )  # fmt: skip
