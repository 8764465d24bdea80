"""MATH-Vision: one image per problem, though the text may have several numbered tags."""

import re
from collections.abc import Iterator

from datasets_prep.converters.base import Changed, Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.columns import images_of
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.options import LETTERS, with_options
from mmr1.types import Sample

_TAG = re.compile(r"<image(\d+)>")


def convert(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """The image replaces the first tag; later tags become text, because the image shows all."""
    question = row["question"].replace("\\n<image", "\n<image")
    options = [_TAG.sub(r"picture \1", option) for option in row["options"]]
    tags = _TAG.findall(question)
    if len(tags) > 1:
        first = _TAG.search(question)
        assert first is not None
        later_text = _TAG.sub(r"(picture \1)", question[first.end() :])
        question = question[: first.end()] + later_text
    answer = str(row["answer"]).strip()
    sample = assemble(
        row, place, [("user", with_options(question, options))], images=images_of(row),
        answer=answer, task="choice" if options and answer in LETTERS else "math",
        used=("question", "options", "answer"), untagged=True,
        meta={"options": options} if options else {},
    )  # fmt: skip
    if len(tags) > 1:
        yield Changed(sample, "several tags for one picture: the first kept, the others named")
    elif not tags:
        yield Changed(sample, "no tag: the picture put before the question")
    elif question != row["question"] or answer != row["answer"]:
        yield Changed(sample, "literal line breaks or spaces of the answer cleaned")
    else:
        yield sample


CONVERTER = Converter(
    name="math_vision",
    description="MATH-Vision (MATH-V): competition problems with pictures, letters and values",
    source="mathllm/MATH-V",
    licence="MIT; a test set",
    files=("test*.jsonl", "*.parquet"),
    convert=convert,
)
