"""GEOQA training rows of R1-V: an answer such as 145° inside the answer tag."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="geoqa_8k",
    description="GEOQA-8K geometry (R1-V)",
    source="leonardPKU/GEOQA_R1V_Train_8K on the Hugging Face Hub",
    licence="Apache-2.0 (R1-V); GeoQA for research",
    files=ROW_FILES,
    convert=of_form("r1_v", task="math"),
)
