"""Media in the prompts of Qwen-VL: placeholders, rotary positions, and how videos are read.

Positions have three rows: time, height and width (M-RoPE, Qwen2-VL, arXiv 2409.12191).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mmr1.types import MediaKind, MediaRef
from mmr1.vision.budget import VideoBudget
from mmr1.vision.prepare import Medium
from mmr1.vision.videos import patch_times, sampled_times


def mrope_positions(
    prompt_ids: Sequence[int], grids: Iterable[torch.Tensor], placeholder_ids: Collection[int]
) -> torch.Tensor:
    """Positions of an expanded prompt: ``[3, P]`` int64.

    Text advances all rows together. A run of placeholders spans its grid from the next free
    position on, and what follows starts after the largest position of any row, as in the releases
    of Qwen2-VL and Qwen2.5-VL and in vLLM. (transformers 5 steps over the larger *spatial* side
    only, which differs for videos that last longer than they are wide; positions are therefore
    always passed to the model.)

    Args:
        grids: ``[3, tokens]`` positions from 0 of each run of placeholders.
    """
    runs: list[torch.Tensor] = []
    remaining = iter(grids)
    start, index = 0, 0
    while index < len(prompt_ids):
        if prompt_ids[index] in placeholder_ids:
            run = next(remaining) + start
        else:
            length = _text_run(prompt_ids, index, placeholder_ids)
            run = (start + torch.arange(length)).expand(3, -1)
        runs.append(run)
        index += run.shape[1]
        start = int(run.max()) + 1
    return torch.cat(runs, dim=1) if runs else torch.zeros(3, 0, dtype=torch.int64)


def grid_positions(medium: Medium, frames: int, positions_per_frame: float = 1.0) -> torch.Tensor:
    """Positions ``[3, tokens]``, from 0, of some temporal patches of a medium."""
    _, h, w = medium.grid
    time = (torch.arange(frames, dtype=torch.float64) * positions_per_frame).long()
    axes = (time, torch.arange(h // medium.merge), torch.arange(w // medium.merge))
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).reshape(3, -1)


def _text_run(prompt_ids: Sequence[int], start: int, placeholder_ids: Collection[int]) -> int:
    """Number of text tokens from ``start`` to the next placeholder or the end."""
    end = start
    while end < len(prompt_ids) and prompt_ids[end] not in placeholder_ids:
        end += 1
    return end - start


Expansion = Callable[[int, Medium], list[int]]
"""What takes the place of a placeholder: by its token id and its medium."""


def repeated(placeholder: int, medium: Medium) -> list[int]:
    """The placeholder as often as its medium has merged tokens: an ``Expansion``."""
    return [placeholder] * medium.tokens


def expand_placeholders(
    kinds: Mapping[int, MediaKind],
    token_ids: Sequence[int],
    media: Sequence[Medium],
    expansion: Expansion = repeated,
) -> list[int]:
    """Each placeholder replaced by what its medium expands to.

    Args:
        kinds: Placeholder token ids and the kind of medium that each stands for.

    Raises:
        ValueError: Placeholders and media differ in number or in kind.
    """
    in_prompt = [kinds[token] for token in token_ids if token in kinds]
    in_sample = [medium.kind for medium in media]
    if in_prompt != in_sample:
        raise ValueError(
            f"the prompt has placeholders for {in_prompt} and the media are {in_sample}"
        )
    pieces = _pieces(kinds, token_ids, media, expansion)
    return [token for _, piece in pieces for token in piece]


def expanded_spans(
    kinds: Mapping[int, MediaKind],
    token_ids: Sequence[int],
    media: Sequence[Medium],
    expansion: Expansion = repeated,
) -> list[tuple[int, int]]:
    """``(first token, tokens)`` of each medium in what :func:`expand_placeholders` returns."""
    spans: list[tuple[int, int]] = []
    offset = 0
    for is_medium, piece in _pieces(kinds, token_ids, media, expansion):
        if is_medium:
            spans.append((offset, len(piece)))
        offset += len(piece)
    return spans


def _pieces(
    kinds: Mapping[int, MediaKind],
    token_ids: Sequence[int],
    media: Sequence[Medium],
    expansion: Expansion,
) -> Iterator[tuple[bool, list[int]]]:
    """Whether each token of the prompt is a medium's, and its replacement."""
    remaining = iter(media)
    for token in token_ids:
        is_medium = token in kinds
        yield is_medium, expansion(token, next(remaining)) if is_medium else [token]


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
        tokenizer: Tokenizer of the times.
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
