"""GOT-10k tracking questions of VideoChat-R1: eight frames of a folder, a box on each."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.data.media_values import locate
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The frames as a list file, boxes 0-1 of the frame size."""
    listed = f"{str(row['path']).rstrip('/')}.frames.json"
    try:
        locate(place.root, listed)
    except ValueError:
        raise ValueError(
            f"the frame folder '{row['path']}' is not listed under {place.root}; put the folder "
            "there and list its frames with 'mmr1-data frames'"
        ) from None
    question = f"Where is the {row['object']} in each of the {len(row['gt'])} frames?"
    yield assemble(
        row, place, [("user", question)], videos=listed, answer=row["gt"], task="tracking",
        used=("path", "gt"), untagged=True, meta={"box_space": "unit"},
    )  # fmt: skip


CONVERTER = Converter(
    name="got10k",
    description="GOT-10k tracking over eight frames (VideoChat-R1)",
    source="VideoChat-R1 Annotations/Got",
    licence="none stated in the repository; GOT-10k is non-commercial",
    files=("got*.json",),
    convert=convert,
)
