"""Geometry3K as InterGPS publishes it: a folder per problem."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.options import LETTERS
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The question in LaTeX and the value behind the letter of the answer."""
    choices, letter = row["compact_choices"], str(row["answer"]).strip()
    if letter not in LETTERS[: len(choices)] or not letter:
        raise ValueError(f"the answer '{letter}' is no letter of the {len(choices)} choices")
    value = choices[LETTERS.index(letter)]
    yield assemble(
        {k: row[k] for k in ("id", "data_type", "precise_value") if k in row},
        place,
        [("user", row.get("annotat_text") or row["compact_text"])],
        images="img_diagram.png",
        answer=f"${value}$",
        task="math",
        untagged=True,
        meta={"choices": list(choices), "letter": letter},
    )


CONVERTER = Converter(
    name="geometry3k",
    description="Geometry3K, original form: a folder per problem, LaTeX, four choices",
    source="InterGPS (lupantech/InterGPS)",
    licence="MIT (InterGPS)",
    files=("data.json",),
    convert=convert,
)
