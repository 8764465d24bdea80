"""Prompts of a model without a family here: its own processor prepares them whole, or of a text
model its tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import Any, get_args

import numpy as np
import torch
from transformers import AutoProcessor, AutoTokenizer
from transformers.video_utils import VideoMetadata

from mmr1.boxes import SpaceName
from mmr1.types import MediaKind, MediaRef, Message, Prompt, Sample, TextPart
from mmr1.vision.budget import PixelBudget, VideoBudget, image_grid, scaled_first
from mmr1.vision.families.chat import Chat, ChatOptions, load_chat, message_parts
from mmr1.vision.families.family import ReadPrompt
from mmr1.vision.families.model_path import from_pretrained
from mmr1.vision.families.registry import COORDINATES
from mmr1.vision.families.rows import joined, of_tokens
from mmr1.vision.families.stopping import declared_stops
from mmr1.vision.images import MAX_PIXELS, image_size, load_image
from mmr1.vision.prepare import Medium, as_decoded
from mmr1.vision.videos import load_video, sampled_grid

_FRAME = PixelBudget(1, 768 * 28 * 28, patch=1, merge=1)
"""The processor sizes frames; larger ones would only fill the memory."""


ATTENTIONS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Types of layers whose keys and values are all that they keep of the tokens before."""

_Shape = tuple[MediaKind, tuple[int, int, int]]
"""A medium: its frames, height and width in pixels."""


@dataclass(frozen=True, slots=True)
class GeneralFamily:
    """The family of any model, by its own processor or tokenizer; a ``ProcessorFamily``.

    Its prepared media are pixels, in the size in which they come; the processor sees them together
    with the text.

    Attributes:
        takes: Names of the arguments that the model's forward has.
        images: Images larger or smaller than that are resized before the processor sees them.
        videos: How many frames are sampled.
        measured: Tokens that media of these kinds and shapes add to a prompt, as the processor
            counted.
    """

    processor: Any
    tokenizer: Any
    chat: Chat
    pad_id: int
    stop_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]
    takes: frozenset[str]
    images: PixelBudget
    videos: VideoBudget
    recurrent: bool
    placeholder_kinds: Mapping[int, MediaKind]
    coordinates: SpaceName | None = None
    measured: dict[tuple[_Shape, ...], int] = field(default_factory=dict)

    shares_prompts = False

    def render_prompt(self, sample: Sample, system_prompt: str | None = None) -> Prompt:
        return self.chat.render(sample, system_prompt)

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> GeneralFamily:
        return replace(self, chat=self.chat.with_tools(tools))

    def read_text(self, text: str, media: Sequence[Medium]) -> list[int]:
        ids: list[int] = self._processed(text, media)["input_ids"][0].tolist()
        return ids

    def decode_media(self, media: MediaRef) -> Any:
        if media.kind == "image":
            return load_image(media, self.images)
        return load_video(media, self.videos)

    def media_tokens(self, media: MediaRef) -> int:
        return self._added([self._shape(media)])

    def prompt_length(self, prompt: Prompt) -> int:
        """Tokens of a prompt with media, about: text that a processor writes around media may merge
        with the prompt's, for a token or two less.
        """
        return len(prompt.token_ids) + self._added(list(map(self._shape, prompt.media)))

    def prepare_media(self, media: MediaRef) -> Medium:
        decoded = self.decode_media(media)
        if media.kind == "image":
            pixels = torch.from_numpy(np.array(decoded))[None]
            metadata = None
        else:
            frames, of_video = decoded
            pixels, metadata = frames.permute(0, 2, 3, 1), asdict(of_video)
        frame_count, height, width, *_ = (*pixels.shape, 1, 1)
        grid = (frame_count, height, width)
        return Medium(
            kind=media.kind,
            stored=pixels,
            grid=grid,
            merge=1,
            seconds_per_grid=None,
            digest=media.digest(),
            patch_size=1,
            metadata=metadata,
            counted=self._added([(media.kind, grid)]),
        )

    def read_prompt(self, prompt: Prompt, media: Sequence[Medium]) -> ReadPrompt:
        asked = len(media) - len(prompt.observed)
        batch = self._processed(prompt.text, media[:asked])
        read, arguments = [batch["input_ids"][0]], self._arguments(batch)
        pieces, observed = [(len(read[0]), arguments)], iter(media[asked:])
        for tokens, count in prompt.since:
            read.append(torch.tensor(tokens, dtype=torch.int64))
            shown = self.arguments_of_media(read[-1], list(islice(observed, count)))
            pieces.append((len(tokens), shown))
        ids = torch.cat(read)
        return ReadPrompt(ids, torch.arange(len(ids))[None], len(ids), joined(pieces))

    def arguments_of_media(
        self, ids: torch.Tensor, media: Sequence[Medium]
    ) -> dict[str, torch.Tensor]:
        """The model's arguments for tokens ``[R]`` of a text that shows media to the model."""
        if not media:
            return {}
        batch = self._processed(self._shown(media).text, media)
        own = batch["input_ids"][0]
        found = {}
        for name, value in self._arguments(batch).items():
            if of_tokens(name, value, len(own)) and value.dim() == 2:
                # The policy never samples a token that stands for a picture.
                pairs = zip(own.tolist(), value[0].tolist(), strict=True)
                of_token = {token: x for token, x in pairs if x}
                value = torch.tensor([[of_token.get(token, 0) for token in ids.tolist()]])
            found[name] = value
        return found

    def _arguments(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name: value
            for name, value in batch.items()
            if name in self.takes and name not in ("input_ids", "attention_mask")
        }

    def _shown(self, media: Sequence[Any]) -> Prompt:
        """A prompt of media of these kinds, and nothing else."""
        refs = tuple(MediaRef(medium.kind, data=b"") for medium in media)
        return self.chat.render(Sample("blank", (Message("user", refs),)), None)

    def example_prompts(self) -> list[ReadPrompt]:
        """A text, and two prompts of each kind of media that the processor reads."""
        shown: list[tuple[_Shape, ...]] = [(), ()]
        shown += [(("image", (1, 64, 48)),), (("image", (1, 40, 40)),)]
        if getattr(self.processor, "video_processor", None) is not None:
            shown += [(("video", (4, 48, 64)),)]
        found = []
        for i, shapes in enumerate(shown):
            refs = tuple(MediaRef(kind, data=b"") for kind, _ in shapes)
            message = Message(
                "user", (*refs, TextPart(f"Which of these is number {i}? " * (1 + i % 2)))
            )
            try:
                prompt = self.chat.render(Sample("example", (message,)), None)
                found.append(self.read_prompt(prompt, [_noise(*shape) for shape in shapes]))
            except Exception:  # a processor may refuse a kind in any way; a text it reads
                if not shapes:
                    raise
        return found

    def engine_processor_options(
        self, kinds: Sequence[MediaKind], rates: Sequence[float]
    ) -> dict[str, Any]:
        if "video" not in kinds:
            return {}
        options: dict[str, Any] = {"do_sample_frames": False}
        if _SECONDS in self.takes:  # of which the processor makes the seconds of a patch
            if len({*rates}) > 1:
                raise ValueError(
                    f"videos of one prompt are sampled at {sorted({*rates})} frames a second, and "
                    "vLLM gives this model one rate for all; set the option fps of each video, or "
                    "rollout.engine=hf"
                )
            options["fps"] = rates[0]
        return options

    def _processed(self, text: str, media: Sequence[Medium]) -> Mapping[str, torch.Tensor]:
        images, videos = (
            [as_decoded(m) for m in media if m.kind == kind] for kind in get_args(MediaKind)
        )
        given: dict[str, Any] = {"images": [images]} if images else {}
        if videos:
            given["videos"] = [[frames for frames, _ in videos]]
            metadata = [[of_video for _, of_video in videos]]
            given["videos_kwargs"] = {"video_metadata": metadata, "do_sample_frames": False}
        # The chat template has written what special tokens there are.
        of_text: dict[str, Any] = {"add_special_tokens": False}
        if self.processor is self.tokenizer:
            assert not media, "the chat template has no place for media"
            return dict(self.tokenizer([text], return_tensors="pt", **of_text))
        if "mm_token_type_ids" in self.takes:
            of_text["return_mm_token_type_ids"] = True
        batch: dict[str, torch.Tensor] = self.processor(
            text=[text], text_kwargs=of_text, return_tensors="pt", **given
        )
        if videos and _SECONDS in batch:  # the processor takes them from a rate of its own
            rates = torch.tensor([float(of_video.sampled_fps) for _, of_video in videos])
            batch[_SECONDS] = self.videos.temporal / rates
        return batch

    def _shape(self, media: MediaRef) -> _Shape:
        """The shape of a medium after decoding, from its header."""
        if media.kind == "image":
            return "image", image_grid(*image_size(media), self.images.of(media.options))
        patches, height, width = sampled_grid(media, self.videos)
        return "video", (patches * self.videos.temporal, height, width)

    def _added(self, shapes: Sequence[_Shape]) -> int:
        """Tokens that media of these shapes add to a prompt: the processor's for black ones."""
        key = tuple(shapes)
        if key and key not in self.measured:
            blanks = [_blank(*shape) for shape in shapes]
            prompt = self._shown(blanks)
            ids = self._processed(prompt.text, blanks)["input_ids"]
            self.measured[key] = ids.shape[1] - len(prompt.token_ids)
        return self.measured[key] if key else 0


_SECONDS = "video_second_per_grid"


def _blank(kind: MediaKind, grid: tuple[int, int, int]) -> Medium:
    return _pixels(kind, grid, torch.zeros(*grid, 3, dtype=torch.uint8))


def _noise(kind: MediaKind, grid: tuple[int, int, int]) -> Medium:
    draw = torch.Generator().manual_seed(grid[1])
    return _pixels(kind, grid, torch.randint(256, (*grid, 3), generator=draw, dtype=torch.uint8))


def _pixels(kind: MediaKind, grid: tuple[int, int, int], pixels: torch.Tensor) -> Medium:
    frames = grid[0]
    metadata = None
    if kind == "video":
        metadata = asdict(VideoMetadata(frames, 2.0, frames_indices=list(range(frames))))
    return Medium(kind, pixels, grid, 1, None, "blank", patch_size=1, metadata=metadata)


def layer_types(config: Any) -> Sequence[str]:
    """The types of a language model's layers, where its configuration has them."""
    return getattr(config.get_text_config(), "layer_types", None) or ()


def load_family(
    path: str,
    config: Any,
    takes: frozenset[str] | None,
    recurrent: bool,
    chat: ChatOptions,
    trust_remote_code: bool,
    **media_options: float | str,
) -> GeneralFamily:
    """See ``Architecture.load_family``.

    Args:
        takes: Names of the arguments that the model's forward has; None for a text model.
    """
    if takes is None:
        tokenizer = from_pretrained(AutoTokenizer, path, trust_remote_code)
        _check_tokenizer(path, tokenizer)
        return _family(path, config, tokenizer, tokenizer, frozenset(), recurrent, chat, {})
    processor = from_pretrained(AutoProcessor, path, trust_remote_code)
    if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
        raise ValueError(
            f"model.path '{path}': its processor is a {type(processor).__name__}, without a "
            "tokenizer or an image processor; copy the processor's files of the model there"
        )
    tokenizer = processor.tokenizer
    return _family(path, config, processor, tokenizer, takes, recurrent, chat, media_options)


def _check_tokenizer(path: str, tokenizer: Any) -> None:
    """Check that the tokenizer has its file; without it transformers makes an empty one."""
    if tokenizer.eos_token_id is None or len(tokenizer) < 256:
        raise ValueError(
            f"model.path '{path}': its tokenizer has {len(tokenizer)} tokens, and its end of "
            f"sequence is {tokenizer.eos_token!r}; copy tokenizer.json and tokenizer_config.json "
            "of the model there"
        )


def _family(
    path: str,
    config: Any,
    processor: Any,
    tokenizer: Any,
    takes: frozenset[str],
    recurrent: bool,
    chat: ChatOptions,
    media_options: Mapping[str, Any],
) -> GeneralFamily:
    # Llama has no padding token; nothing is ever read where padding is.
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    stops = declared_stops(path, config, tokenizer)
    content = attrgetter("text") if processor is tokenizer else message_parts
    own_chat = load_chat(path, config, processor, tokenizer, content, chat, stops)
    kinds = _placeholder_kinds(own_chat, config)
    never = {*placeholder_ids(config, processor), *kinds, pad}
    return GeneralFamily(
        processor=processor,
        tokenizer=tokenizer,
        chat=own_chat,
        pad_id=pad,
        stop_ids=own_chat.stop_ids,
        forbidden_ids=own_chat.forbidden(never),
        takes=takes,
        images=_images(media_options),
        videos=VideoBudget(
            frame=_FRAME,
            temporal=getattr(getattr(processor, "video_processor", None), "temporal_patch_size", 1),
        ).of(media_options),
        recurrent=recurrent,
        placeholder_kinds=kinds,
        coordinates=COORDINATES.get(config.model_type),
    )


def _images(options: Mapping[str, Any]) -> PixelBudget:
    """The processor cuts patches itself, so the size is any within the limits."""
    if (first := scaled_first(options)) is not None:
        return PixelBudget(1, MAX_PIXELS, patch=1, merge=1, first=first)
    least, most = options.get("image_min_pixels", 1), options.get("image_max_pixels", MAX_PIXELS)
    return PixelBudget(int(least), int(most), patch=1, merge=1)


def _placeholder_kinds(chat: Chat, config: Any) -> dict[int, MediaKind]:
    """See ``ModelFamily.placeholder_kinds``: what the chat template writes for a medium alone."""
    added = {*chat.tokenizer.get_added_vocab().values()}
    found: dict[int, MediaKind] = {}
    for kind in get_args(MediaKind):
        shown = (Message("user", (MediaRef(kind, data=b""),)), Message("user", (TextPart("a"),)))
        try:
            ids, of_text = (
                chat.render(Sample("blank", messages), None).token_ids
                for messages in (shown, (Message("user", ()), shown[1]))
            )
        except ValueError:  # it has no place for this kind
            continue
        new = [token for token in Counter(ids) - Counter(of_text) if token in added]
        known = _tokens_named(_of_kind(kind), config, chat.processor)
        if new := [token for token in new if token in known] or new:
            found[new[0]] = kind
    return found


def placeholder_ids(config: Any, processor: Any) -> set[int]:
    """Tokens that the model reads as a medium, wherever they stand; and those before one, by which
    some count their media.
    """
    names = [name for kind in get_args(MediaKind) for name in _of_kind(kind)]
    return _tokens_named([*names, "vision_start_token_id"], config, processor)


def _of_kind(kind: MediaKind) -> list[str]:
    return [f"{kind}_token_{suffix}" for suffix in ("id", "index")]


def _tokens_named(names: Sequence[str], *owners: Any) -> set[int]:
    found = {getattr(owner, name, None) for owner in owners for name in names}
    return {token for token in found if isinstance(token, int)}
