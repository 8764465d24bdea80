"""A judge: a score from a model behind an OpenAI-compatible server, vLLM's own included."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mmr1.rewards.kind import RewardConfig, reward
from mmr1.section import Coefficient, Count, Positive, Url


@reward("judge", body="mmr1.rewards.judges.judge:judge")
class JudgeConfig(RewardConfig):
    """A model reads the completion and scores it, or compares it with the gold answer or others."""

    type: Literal["judge"] = "judge"
    url: Url | list[Url] = Field(
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
    opponents: Positive = Field(1, description="Completions that each is compared with")
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
    timeout_s: Coefficient = Field(60.0, description="Seconds allowed for one call")
    temperature: float = Field(0.0, ge=0, description="Of the judge's sampling")
    max_tokens: Positive = Field(1024, description="Longest reply in tokens")
    concurrency: Positive = Field(16, description="Calls at a time")
    retries: Count = Field(3, description="Further attempts after a call that failed")
    cache: Path | None = Field(None, description="SQLite file that keeps replies by content")
    api_key_env: str | None = Field(None, description="Environment variable that holds the key")
    headers: dict[str, str] = Field(default_factory=dict, description="Sent with every call")
    extra: dict[str, Any] = Field(
        default_factory=dict, description="More keys of the request, e.g. response_format"
    )

    @field_validator("score_regex")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is not None and re.compile(pattern).groups < 1:
            raise ValueError("the regular expression needs a group around the score")
        return pattern

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
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

    @property
    def headers_with_key(self) -> dict[str, str]:
        """The headers, with the key of the environment variable.

        Raises:
            ValueError: If the variable is not set.
        """
        from mmr1.rewards.http.addresses import key_headers

        return {**self.headers, **key_headers(self.api_key_env)}
