"""Pixel and token budgets: the cost of an image or a video, from its size alone.

The arithmetic is that of qwen-vl-utils, which is called for it: ``smart_resize``, the number and
the range of a video's frames, and their limits. Filtering by length so never decodes a dataset.
The library is imported when a size is first computed, for it loads torch. What it leaves open is
here: a side of 0 pixels, which it gives to long strips, and a size that must stay as it is when it
is fitted twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

MAX_ASPECT_RATIO = 200
"""The processors refuse longer strips."""
VIDEO_TOKENS = 128_000 * 0.9
"""How many tokens the pairs of frames of a video make at most. qwen-vl-utils reads the 128,000 from
the variable MODEL_SEQ_LEN of the environment; here a run's configuration alone tells its sizes."""
IMAGE_MAX_PIXELS = 1280 * 28 * 28
"""The area of the largest image unless ``data.image.max_pixels`` is set: 1,280 tokens of
Qwen2.5-VL, 980 of Qwen3-VL. Their processors' own 16,384 tokens fit in no prompt of 3,072."""


@cache
def qwen_vl_utils() -> Any:
    """The arithmetic of qwen-vl-utils; the first call loads torch and torchvision."""
    from qwen_vl_utils import vision_process

    # It warns of each video with fewer frames a second than asked for, at each look: no fault.
    vision_process.logger.setLevel("ERROR")
    return vision_process


@dataclass(frozen=True, slots=True)
class PixelBudget:
    """The limits of one image's size, and its division into patches.

    Attributes:
        min_pixels: Smaller images are enlarged to this area.
        max_pixels: Larger images are shrunk to this area.
        patch: Side of a patch in pixels.
        merge: Side of the square of patches that becomes one token.
        first: Size that an image is scaled to before it is fitted.
    """

    min_pixels: int = 4 * 28 * 28
    max_pixels: int = IMAGE_MAX_PIXELS
    patch: int = 14
    merge: int = 2
    first: ScaledFirst | None = None

    @property
    def factor(self) -> int:
        """The number that sides are multiples of."""
        return self.patch * self.merge

    def __post_init__(self) -> None:
        _check_order(self.min_pixels, self.max_pixels)

    def of(self, options: Mapping[str, Any]) -> PixelBudget:
        """This budget with what ``options`` of one medium ask for instead.

        Raises:
            ValueError: The least area is above the largest one.
        """
        limits: dict[str, Any] = {
            key: int(options[key]) for key in ("min_pixels", "max_pixels") if key in options
        }
        if self.first is not None:
            return replace(self, first=replace(self.first, **limits))
        return replace(self, **limits)


@dataclass(frozen=True, slots=True)
class ScaledFirst:
    """Limits of an image's area, whole patches being made of what that leaves.

    Attributes:
        as_in: The project whose rules these are: EasyR1's ``process_image``, or LLaMA-Factory's
            plugin for Qwen2-VL, which also widens thin pictures and shortens strips.
        min_pixels: Smaller images are enlarged to this area.
        max_pixels: Larger images are shrunk to this area.
    """

    as_in: Literal["easyr1", "llama_factory"]
    min_pixels: int | None
    max_pixels: int | None

    def __post_init__(self) -> None:
        _check_order(self.min_pixels or 0, self.max_pixels or math.inf)

    def sizes(self, width: int, height: int) -> Iterator[tuple[int, int]]:
        """``(width, height)`` of each resizing, one after the other."""
        if self.max_pixels is not None and width * height > self.max_pixels:
            width, height = _scaled(width, height, self.max_pixels)
            yield width, height
        if self.min_pixels is not None and width * height < self.min_pixels:
            width, height = _scaled(width, height, self.min_pixels)
            yield width, height
        if self.as_in == "easyr1":
            return
        if min(width, height) < 28:
            width, height = max(width, 28), max(height, 28)
            yield width, height
        if max(width, height) > 200 * min(width, height):
            width, height = (height * 180, height) if width > height else (width, width * 180)
            yield width, height


def _scaled(width: int, height: int, area: int) -> tuple[int, int]:
    factor = math.sqrt(area / (width * height))
    return max(int(width * factor), 1), max(int(height * factor), 1)


def _check_order(least: float, most: float) -> None:
    if least > most:
        raise ValueError(
            f"min_pixels={least} is above max_pixels={most}; lower the one or raise the other (of "
            "images data.image.*, of videos data.video.*, or the options of the medium)"
        )


@dataclass(frozen=True, slots=True)
class VideoBudget:
    """The limits of a video's frames and their size, and its decoder.

    The defaults are those of qwen-vl-utils for patches of 14 pixels.

    Attributes:
        fps: Frames sampled per second of video.
        min_frames: At least so many frames, the video permitting.
        max_frames: At most so many frames.
        frame: Pixels of one frame.
        total_pixels: Pixels of all frames together; longer videos get smaller frames.
        temporal: Frames that make one temporal patch; the number of frames is a multiple.
        backend: One of :data:`mmr1.vision.videos.BACKENDS`.
        num_frames: Exactly so many of the sampled frames are shown; see :func:`shown_frames`.
    """

    fps: float = field(default_factory=lambda: qwen_vl_utils().FPS)
    min_frames: int = field(default_factory=lambda: qwen_vl_utils().FPS_MIN_FRAMES)
    max_frames: int = field(default_factory=lambda: qwen_vl_utils().FPS_MAX_FRAMES)
    frame: PixelBudget = field(default_factory=lambda: frame_budget(PixelBudget()))
    total_pixels: int = int(VIDEO_TOKENS * 28 * 28)
    temporal: int = 2
    backend: str = "auto"
    num_frames: int | None = None

    def __post_init__(self) -> None:
        if self.num_frames is not None and self.num_frames % self.temporal:
            raise ValueError(
                f"data.video.num_frames={self.num_frames}: this model reads {self.temporal} frames "
                "at once; set a multiple of that"
            )

    def of(self, options: Mapping[str, Any]) -> VideoBudget:
        """This budget with what ``options`` of one medium ask for instead."""
        return VideoBudget(
            float(options.get("fps", self.fps)),
            int(options.get("min_frames", self.min_frames)),
            int(options.get("max_frames", self.max_frames)),
            self.frame.of(options),
            int(options.get("total_pixels", self.total_pixels)),
            self.temporal,
            options.get("backend", self.backend),
            options.get("num_frames", self.num_frames),
        )


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """The contents of a video by its index of packets, not by what its header declares.

    Attributes:
        frames: Number of frames that are shown.
        fps: Frames per second; the mean where the rate varies.
        width: Width of the upright image, in pixels.
        height: Height of the upright image, in pixels.
        begin: Seconds from the beginning of the file to the first frame.
    """

    frames: int
    fps: float
    width: int
    height: int
    begin: float = 0.0


def image_budget(processor: Any, **options: Any) -> PixelBudget:
    """The budget of a transformers image processor (or of the one inside a whole processor).

    ``options`` may hold ``image_min_pixels`` and ``image_max_pixels`` in the place of its own, of
    which the larger is at most :data:`IMAGE_MAX_PIXELS`; with ``image_resize`` an image is scaled
    to them before it is fitted to the processor's own.
    """
    processor = getattr(processor, "image_processor", processor)
    size, patches = processor.size, (processor.patch_size, processor.merge_size)
    least, most = size["shortest_edge"], size["longest_edge"]
    if (first := scaled_first(options)) is not None:
        return PixelBudget(least, most, *patches, first)
    return PixelBudget(
        int(options.get("image_min_pixels", least)),
        int(options.get("image_max_pixels", min(most, IMAGE_MAX_PIXELS))),
        *patches,
    )


def scaled_first(options: Mapping[str, Any]) -> ScaledFirst | None:
    """Return the size for ``image_resize``, ``image_min_pixels`` and ``image_max_pixels``."""
    if options.get("image_resize", "smart_resize") == "smart_resize":
        return None
    limits = (options.get(f"image_{key}") for key in ("min_pixels", "max_pixels"))
    return ScaledFirst(options["image_resize"], *limits)


def video_budget(processor: Any, **options: Any) -> VideoBudget:
    """The budget of videos for the patches of a transformers video processor, or a whole one.

    The sizes are qwen-vl-utils'. Those of the processor of Qwen2.5-VL are the sizes of images:
    3,136 to 12.8 million pixels.
    """
    processor = getattr(processor, "video_processor", processor)
    patches = image_budget(processor)
    return VideoBudget(
        frame=frame_budget(patches),
        total_pixels=int(VIDEO_TOKENS * patches.factor**2),
        temporal=processor.temporal_patch_size,
    ).of(options)


def frame_budget(patches: PixelBudget) -> PixelBudget:
    """The limits of qwen-vl-utils for one frame of a video in such patches."""
    token, limits = patches.factor**2, qwen_vl_utils()
    low, high = limits.VIDEO_MIN_TOKEN_NUM * token, limits.VIDEO_MAX_TOKEN_NUM * token
    return replace(patches, min_pixels=low, max_pixels=high)


def fit_size(width: int, height: int, budget: PixelBudget) -> tuple[int, int]:
    """``(width, height)`` in pixels as the model will see the image.

    Multiples of :attr:`PixelBudget.factor`, the area within the budget, the aspect ratio nearly
    kept. Applying it again changes nothing (unless the budget scales first), so a processor leaves
    a fitted image alone.

    Raises:
        ValueError: The longer side exceeds :data:`MAX_ASPECT_RATIO` times the shorter one, or no
            size within the budget has nearly this aspect ratio.
    """
    if budget.first is not None:
        *_, (width, height) = ((width, height), *budget.first.sizes(width, height))
        return _smart_resize(width, height, budget, budget.max_pixels)
    fitted = _smart_resize(width, height, budget, budget.max_pixels)
    if fitted[0] * fitted[1] > budget.max_pixels:  # a strip whose short side had to be raised
        longest = budget.max_pixels // budget.factor**2 * budget.factor
        fitted = (min(fitted[0], longest), min(fitted[1], longest))
    if (
        fitted[0] * fitted[1] > budget.max_pixels
        or _smart_resize(*fitted, budget, budget.max_pixels) != fitted
    ):
        raise ValueError(
            f"{width}x{height} pixels cannot be brought to {budget.min_pixels}-{budget.max_pixels} "
            "pixels in whole patches; widen the budget or crop the image"
        )
    return fitted


def check_aspect_ratio(width: int, height: int) -> None:
    """Check that the processors take a picture of this shape.

    Raises:
        ValueError: If one side is too much longer than the other.
    """
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise ValueError(
            f"{width}x{height} pixels: one side is more than {MAX_ASPECT_RATIO} times the other, "
            "which the model's processor refuses; crop or pad it"
        )


def _smart_resize(
    width: int, height: int, budget: PixelBudget, max_pixels: float
) -> tuple[int, int]:
    """``(width, height)`` of qwen-vl-utils' ``smart_resize``; no side is 0."""
    check_aspect_ratio(width, height)
    size, factor = qwen_vl_utils().smart_resize, budget.factor
    rows, columns = size(height, width, factor, budget.min_pixels, max_pixels)
    return max(columns, factor), max(rows, factor)


def image_grid(width: int, height: int, budget: PixelBudget) -> tuple[int, int, int]:
    """``(t, h, w)`` in patches of an image of this original size."""
    fitted = fit_size(width, height, budget)
    return 1, fitted[1] // budget.patch, fitted[0] // budget.patch


def sampled_indices(
    header: VideoHeader, budget: VideoBudget, options: Mapping[str, Any]
) -> list[int]:
    """The sampled frames of a video; ``start`` and ``end`` are times since the file begins.

    Raises:
        ValueError: See :func:`frame_indices`.
    """
    since_first = {k: options[k] - header.begin for k in ("start", "end") if k in options}
    return frame_indices(header.frames, header.fps, budget, {**options, **since_first})


def frame_indices(
    frames: int, fps: float, budget: VideoBudget, options: Mapping[str, Any]
) -> list[int]:
    """The sampled frames of a video: evenly spread, an even number.

    Args:
        frames: Frames of the whole video.
        fps: Its frame rate.
        budget: Budget with the options of the video applied (:meth:`VideoBudget.of`).
        options: ``start`` and ``end`` in seconds since the first frame, ``nframes`` for a fixed
            number.

    Raises:
        ValueError: The video, or the part from ``start`` to ``end``, is too short.
    """
    first, last = _frame_range(frames, fps, options)
    available = last - first + 1
    rules, step = qwen_vl_utils(), budget.temporal
    # It counts in pairs of frames: what makes patches of another number is scaled to them.
    pairs = rules.FRAME_FACTOR / step
    if "nframes" in options:
        asked = {"nframes": int(options["nframes"]) * pairs}
    else:
        low, high = budget.min_frames * pairs, budget.max_frames * pairs
        asked = {"fps": budget.fps, "min_frames": low, "max_frames": high}
    try:
        count = round(rules.smart_nframes(asked, available * pairs, fps) / pairs)
    except ValueError:
        raise ValueError(
            f"too few or too many frames requested: there are {available}, and between {step} and "
            "that many can be had (set nframes, fps, max_frames, start and end accordingly)"
        ) from None
    # Halfway cases round to the even neighbour, as torch.linspace(...).round() does.
    return [round(first + (last - first) * i / max(count - 1, 1)) for i in range(count)]


def _frame_range(frames: int, fps: float, options: Mapping[str, Any]) -> tuple[int, int]:
    if frames == 1:
        raise ValueError("holds a single frame and a video needs two; give it as an image")
    start, end = options.get("start"), options.get("end")
    asked = {"video_start": start, "video_end": end}
    try:
        first, last, _ = qwen_vl_utils().calculate_video_frame_range(asked, frames, fps)
    except ValueError:
        duration = frames / fps
        part = f" between {start or 0:g} s and {duration if end is None else end:g} s"
        raise ValueError(f"no two frames{part} of a {duration:.2f} s video") from None
    return first, last


def shown_frames(indices: Sequence[int], budget: VideoBudget) -> list[int]:
    """Return the sampled frames that the model sees: all, or exactly ``budget.num_frames``.

    These are evenly spread, rounded down, and repeated where fewer were sampled: as Open-R1-Video
    does it, whose sizes are those of all sampled frames.
    """
    if budget.num_frames is None:
        return list(indices)
    # By PyTorch, whose single precision decides what is rounded down.
    places = qwen_vl_utils().torch.linspace(0, len(indices) - 1, budget.num_frames).long()
    return [indices[place] for place in places.tolist()]


def fit_frame(width: int, height: int, count: int, budget: VideoBudget) -> tuple[int, int]:
    """``(width, height)`` of each of ``count`` frames as the model will see them."""
    share = budget.total_pixels / count * budget.temporal
    largest = max(min(budget.frame.max_pixels, share), int(budget.frame.min_pixels * 1.05))
    return _smart_resize(width, height, budget.frame, largest)


def video_grid(width: int, height: int, count: int, budget: VideoBudget) -> tuple[int, int, int]:
    """``(t, h, w)`` in patches of ``count`` sampled frames of this original size."""
    fitted, shown = fit_frame(width, height, count, budget), budget.num_frames or count
    patch = budget.frame.patch
    return math.ceil(shown / budget.temporal), fitted[1] // patch, fitted[0] // patch


def tokens(grid: tuple[int, int, int], merge: int = 2) -> int:
    """Vision tokens of a grid ``(t, h, w)`` of patches."""
    t, h, w = grid
    return t * h * w // merge**2
