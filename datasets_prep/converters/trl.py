"""Any dataset in the form that TRL reads."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="trl",
    description="any dataset in TRL form: prompt (chat), image or images",
    source="yours",
    licence="that of the dataset",
    files=ROW_FILES,
    convert=of_form("trl"),
)
