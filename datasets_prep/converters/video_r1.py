"""Video-R1: videos and images, six types of problem, chains of thought in the COT part."""

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

CONVERTER = Converter(
    name="video_r1",
    description="Video-R1-260k and Video-R1-COT-165k",
    source="Video-R1/Video-R1-data on the Hugging Face Hub",
    licence="Apache-2.0 by its card; its source datasets have their own terms",
    files=ROW_FILES,
    convert=of_form("video_r1"),
)
