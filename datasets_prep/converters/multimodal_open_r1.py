"""multimodal-open-r1-8k: reasoning problems whose solution ends in the answer tag."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="multimodal_open_r1",
    description="multimodal-open-r1-8k-verified",
    source="lmms-lab/multimodal-open-r1-8k-verified on the Hugging Face Hub",
    licence="Apache-2.0",
    files=ROW_FILES,
    convert=of_form("r1_v", task="math"),
)
