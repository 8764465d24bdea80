"""Super-CLEVR: questions about rendered scenes; a word, a number or yes and no."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The picture lies in ``images`` beside the questions."""
    answer = row["answer"]
    if isinstance(answer, bool):
        task, answer = "exact", "yes" if answer else "no"
    else:
        task, answer = ("count" if str(answer).isdigit() else "exact"), str(answer)
    yield assemble(
        row, place, [("user", row["question"])], images=f"images/{row['image_filename']}",
        answer=answer, task=task, used=("question", "answer"), untagged=True,
    )  # fmt: skip


CONVERTER = Converter(
    name="super_clevr",
    description="Super-CLEVR: questions about rendered vehicles",
    source="Lizw14/Super-CLEVR",
    licence="BSD (code); questions CC BY 4.0",
    files=("superCLEVR_questions*.json",),
    convert=convert,
)
