"""CLEVR counting of R1-V: the count stands inside the answer tag of the solution."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="clevr_70k",
    description="CLEVR-70k counting (R1-V)",
    source="leonardPKU/clevr_cogen_a_train on the Hugging Face Hub",
    licence="CC BY 4.0 (CLEVR)",
    files=ROW_FILES,
    convert=of_form("r1_v", task="count"),
)
