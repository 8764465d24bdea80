"""LMM-R1 VerMulti: a stringified conversation, the image behind the text, a boxed answer."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="lmm_r1",
    description="LMM-R1 VerMulti",
    source="VLM-Reasoner/VerMulti on the Hugging Face Hub",
    licence="Apache-2.0 (LMM-R1); its images have their own terms",
    files=ROW_FILES,
    convert=of_form("lmm_r1", task="math"),
)
