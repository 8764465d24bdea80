"""The options of a judge, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mmr1.rewards.http.addresses import key_headers, parse_address

_KEYS_FROM_ENVIRONMENT = (
    "a key is never written into a configuration; put it into an environment variable and name "
    "that: api_key_env: OPENAI_API_KEY"
)


class JudgeOptions(BaseModel):
    """``rewards.functions.NAME.options`` of a judge."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    url: str | list[str] = Field(
        description="Address up to /v1; several servers of one model share the calls"
    )
    model: str = Field(description="Name of the model, as the server lists it")
    template: str | None = Field(
        None,
        description="correctness, quality, pairwise, or a .jinja file; default: correctness, or "
        "pairwise with against",
    )
    against: Literal["answer", "group"] | None = Field(
        None,
        description="Compare the completion with the gold answer, or with other completions of "
        "the prompt; default: judge it by itself",
    )
    opponents: int = Field(1, ge=1, description="Completions that each is compared with")
    score_key: str | None = Field(
        None, description="Key of the reply's JSON object; default: score, or winner with against"
    )
    score_regex: str | None = Field(
        None, description="Read the score by this regular expression's first group instead"
    )
    scale: tuple[float, float] = Field(
        (0.0, 1.0), description="Worst and best score; they become 0 and 1"
    )
    images: bool = Field(True, description="Show the question's images")
    temperature: float = Field(0.0, ge=0, description="Of the judge's sampling")
    max_tokens: int = Field(1024, ge=1, description="Longest reply in tokens")
    concurrency: int = Field(16, ge=1, description="Calls at a time")
    retries: int = Field(3, ge=0, description="Further attempts after a call that failed")
    cache: Path | None = Field(None, description="SQLite file that keeps replies by content")
    api_key_env: str | None = Field(None, description="Environment variable that holds the key")
    headers: dict[str, str] = Field(default_factory=dict, description="Sent with every call")
    extra: dict[str, Any] = Field(
        default_factory=dict, description="More keys of the request, e.g. response_format"
    )

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | list[str]) -> str | list[str]:
        for one in [url] if isinstance(url, str) else url:
            parse_address(one)
        return url

    @field_validator("score_regex")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is not None and re.compile(pattern).groups < 1:
            raise ValueError("the regular expression needs a group around the score")
        return pattern

    @model_validator(mode="after")
    def _check_combinations(self) -> JudgeOptions:
        if self.scale[0] == self.scale[1]:
            raise ValueError("scale: the worst and the best score are equal")
        if self.against is None and self.opponents > 1:
            raise ValueError("opponents is for comparisons; set against=group, or leave it out")
        return self

    @property
    def urls(self) -> list[str]:
        """The addresses of the servers' chat completions."""
        urls = [self.url] if isinstance(self.url, str) else self.url
        return [f"{url.rstrip('/')}/chat/completions" for url in urls]

    @property
    def template_name(self) -> str:
        return self.template or ("pairwise" if self.against else "correctness")

    @property
    def key(self) -> str:
        """The key of the verdict in the reply's JSON object."""
        return self.score_key or ("winner" if self.against else "score")

    def all_headers(self) -> dict[str, str]:
        """The headers with the key. Raises ValueError if the environment variable is not set."""
        return {**self.headers, **key_headers(self.api_key_env)}


def read_judge_options(name: str, options: Mapping[str, Any]) -> JudgeOptions:
    """The options of the reward function ``name``.

    Raises:
        ValueError: One is unknown, missing or wrong. Names it.
    """
    if "api_key" in options:
        raise ValueError(f"rewards.functions.{name}.options.api_key: {_KEYS_FROM_ENVIRONMENT}")
    try:
        return JudgeOptions.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["options", *map(str, first["loc"])])
        known = ", ".join(JudgeOptions.model_fields)
        remedy = f"; a judge has: {known}" if first["type"] == "extra_forbidden" else ""
        raise ValueError(f"rewards.functions.{name}.{key}: {first['msg']}{remedy}") from None
