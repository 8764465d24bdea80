"""Geometry3K after verl's preprocessing."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="verl_geo3k",
    description="Geometry3K as verl preprocesses it (parquet)",
    source="verl examples/data_preprocess/geo3k.py",
    licence="MIT (InterGPS)",
    files=ROW_FILES,
    convert=of_form("verl", task="math"),
)
