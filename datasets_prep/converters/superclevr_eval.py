"""The SuperCLEVR counting questions that R1-V evaluates on."""

from datasets_prep.converters.base import Converter, of_form

CONVERTER = Converter(
    name="superclevr_eval",
    description="SuperCLEVR counting, evaluation rows of R1-V",
    source="R1-V src/eval/prompts",
    licence="Apache-2.0 (R1-V); BSD and CC BY 4.0 (Super-CLEVR)",
    files=("superclevr*.jsonl",),
    convert=of_form("r1_v_eval", task="count"),
)
