"""Conversations with media, as LLaMA-Factory reads them."""

from datasets_prep.converters.base import Converter, of_form

CONVERTER = Converter(
    name="sharegpt",
    description="conversations with media in ShareGPT form (demonstrations)",
    source="LLaMA-Factory data/",
    licence="Apache-2.0 (LLaMA-Factory)",
    files=("mllm*.json", "*.jsonl"),
    convert=of_form("sharegpt"),
)
