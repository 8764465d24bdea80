"""R1-Onevision: embedded images (base64, or none) and long reasoning as demonstrations."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="r1_onevision",
    description="R1-Onevision reasoning demonstrations",
    source="Fancy-MLLM/R1-Onevision on the Hugging Face Hub",
    licence="Apache-2.0",
    files=ROW_FILES,
    convert=of_form("vlm_r1"),
)
