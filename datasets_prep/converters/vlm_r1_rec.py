"""VLM-R1 referring expressions: boxes in pixels of the original image."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="vlm_r1_rec",
    description="RefCOCO and LISA rows of VLM-R1 (evaluation form)",
    source="omlab/VLM-R1 on the Hugging Face Hub",
    licence="Apache-2.0 (VLM-R1); RefCOCO and COCO annotation terms",
    files=ROW_FILES,
    convert=of_form("rec", task="iou"),
)
