"""Any dataset in the form that OpenRLHF reads."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="openrlhf",
    description="any dataset in OpenRLHF form: prompt, images, label",
    source="yours",
    licence="that of the dataset",
    files=ROW_FILES,
    convert=of_form("openrlhf"),
)
