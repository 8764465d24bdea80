"""MathVista: multiple choice answered by the option's text, and numbers with a precision."""

from datasets_prep.converters.base import Converter, of_form

CONVERTER = Converter(
    name="mathvista",
    description="MathVista testmini: mathematics in pictures of many kinds",
    source="AI4Math/MathVista on the Hugging Face Hub",
    licence="CC BY-SA 4.0; may not be used as training data",
    files=("testmini*.json", "*.json", "*.parquet"),
    convert=of_form("mathvista"),
)
