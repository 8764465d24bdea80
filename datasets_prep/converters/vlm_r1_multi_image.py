"""VLM-R1 multi-image: two images and no placeholder; the reply is the answer."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="vlm_r1_multi_image",
    description="multi-image GUI defects (VLM-R1)",
    source="VLM-R1 data_jsonl/gui_multi-image.jsonl",
    licence="Apache-2.0 (VLM-R1)",
    files=ROW_FILES,
    convert=of_form("vlm_r1", task="exact"),
)
