"""Journeybench multi-image arithmetic in EasyR1 form: two tagged images, a value."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="journeybench",
    description="Journeybench multi-image problems, EasyR1 form",
    source="hiyouga/journeybench-multi-image-vqa on the Hugging Face Hub",
    licence="not stated; see the dataset card",
    files=ROW_FILES,
    convert=of_form("easyr1", task="math"),
)
