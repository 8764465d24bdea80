"""Geometry3K as the Hub has it for EasyR1: a tagged problem, embedded images, a value."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="geometry3k_hub",
    description="Geometry3K, Hub form (parquet): geometry problems with a value",
    source="hiyouga/geometry3k on the Hugging Face Hub",
    licence="MIT (InterGPS)",
    files=ROW_FILES,
    convert=of_form("easyr1", task="math"),
)
