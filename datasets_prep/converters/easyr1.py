"""Any dataset in the form that EasyR1 reads."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="easyr1",
    description="any dataset in EasyR1 form: problem, answer, images or videos",
    source="yours",
    licence="that of the dataset",
    files=ROW_FILES,
    convert=of_form("easyr1"),
)
