"""Super-CLEVR: questions about rendered scenes; a word, a number or yes and no."""

from datasets_prep.converters.base import Converter, of_form

CONVERTER = Converter(
    name="super_clevr",
    description="Super-CLEVR: questions about rendered vehicles",
    source="Lizw14/Super-CLEVR",
    licence="BSD (code); questions CC BY 4.0",
    files=("superCLEVR_questions*.json",),
    convert=of_form("clevr"),
)
