"""The GeoQA questions that R1-V evaluates on: an angle or a length."""

from datasets_prep.converters.base import Converter, of_form

CONVERTER = Converter(
    name="geoqa_eval",
    description="GeoQA, evaluation rows of R1-V",
    source="R1-V src/eval/prompts",
    licence="Apache-2.0 (R1-V); GeoQA for research",
    files=("geoqa*.jsonl",),
    convert=of_form("r1_v_eval", task="math"),
)
