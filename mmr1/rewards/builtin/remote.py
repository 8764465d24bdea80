"""A reward behind HTTP servers, in OpenRLHF's protocol."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmr1.rewards.kind import RewardConfig, reward
from mmr1.section import Coefficient, Count


@reward("remote", body="mmr1.rewards.plugins.http_client:remote")
class RemoteConfig(RewardConfig):
    """What a server answers, such as ``mmr1 reward serve`` or OpenRLHF's remote reward."""

    type: Literal["remote"] = "remote"
    url: str | list[str] = Field(description="Address; several servers share the completions")
    timeout_s: Coefficient | None = Field(
        None, description="Seconds allowed for one call; null: scoring.timeout_s"
    )
    retries: Count = Field(2, description="Further attempts after a call that failed")
    rows: bool = Field(
        False, description="Send the whole records too, as mmr1 reward serve reads them"
    )
    headers: dict[str, str] = Field(default_factory=dict, description="Sent with every call")

    @property
    def urls(self) -> list[str]:
        """The addresses."""
        return [self.url] if isinstance(self.url, str) else self.url
