"""Videos in the generations of Qwen-VL: one grid in time, or frames with written times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mmr1.types import MediaRef
from mmr1.vision.budget import VideoBudget
from mmr1.vision.families.mrope import grid_positions
from mmr1.vision.families.placeholders import repeated
from mmr1.vision.prepare import Medium
from mmr1.vision.videos import patch_times, sampled_times


class VideoReading(Protocol):
    """The differences between the generations."""

    @property
    def timed(self) -> bool:
        """True if the model takes the seconds between temporal patches."""
        ...

    def expansion(self, placeholder: int, medium: Medium) -> list[int]:
        """The tokens in the place of a medium's placeholder."""
        ...

    def text_tokens(self, media: MediaRef, budget: VideoBudget) -> int:
        """Tokens of a video that are text, from its header."""
        ...

    def grids(self, medium: Medium) -> list[torch.Tensor]:
        """Positions from 0 of each run of vision tokens, ``[3, tokens]``."""
        ...


@dataclass(frozen=True, slots=True)
class WholeVideos:
    """A video is one run of tokens, with rotary positions in time (Qwen2-VL, Qwen2.5-VL).

    Attributes:
        positions_per_second: Temporal positions; None counts temporal patches instead.
    """

    positions_per_second: float | None

    @property
    def timed(self) -> bool:
        return self.positions_per_second is not None

    def expansion(self, placeholder: int, medium: Medium) -> list[int]:
        return repeated(placeholder, medium)

    def text_tokens(self, media: MediaRef, budget: VideoBudget) -> int:
        return 0

    def grids(self, medium: Medium) -> list[torch.Tensor]:
        per_patch = 1.0
        if self.positions_per_second is not None and medium.seconds_per_grid is not None:
            per_patch = medium.seconds_per_grid * self.positions_per_second
        return [grid_positions(medium, medium.grid[0], per_patch)]


@dataclass(frozen=True, slots=True)
class FramesWithTimes:
    """Each temporal patch is a separate picture after its time: ``<1.5 seconds>`` (Qwen3-VL).

    Attributes:
        tokenizer: For the times.
        around: The tokens before and after the vision tokens of a picture.
    """

    tokenizer: Any
    around: tuple[int, int]

    timed = False

    def expansion(self, placeholder: int, medium: Medium) -> list[int]:
        if medium.kind == "image":
            return repeated(placeholder, medium)
        before, after = self.around
        seen = [placeholder] * (medium.tokens // medium.grid[0])
        written = self._written(medium.times)
        return [token for time in written for token in (*time, before, *seen, after)]

    def text_tokens(self, media: MediaRef, budget: VideoBudget) -> int:
        written = self._written(patch_times(sampled_times(media, budget), budget.temporal))
        return sum(len(time) + len(self.around) for time in written)

    def grids(self, medium: Medium) -> list[torch.Tensor]:
        return [grid_positions(medium, 1)] * medium.grid[0]

    def _written(self, times: Sequence[float]) -> list[list[int]]:
        texts = [f"<{seconds:.1f} seconds>" for seconds in times]
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []


def whole_videos(processor: Any, config: Any) -> WholeVideos:
    """The reading of Qwen2.5-VL, and of Qwen2-VL, whose configuration knows no seconds."""
    per_second = getattr(config.vision_config, "tokens_per_second", None)
    return WholeVideos(None if per_second is None else float(per_second))


def frames_with_times(processor: Any, config: Any) -> FramesWithTimes:
    """The reading of Qwen3-VL."""
    around = (config.vision_start_token_id, config.vision_end_token_id)
    return FramesWithTimes(processor.tokenizer, around)
