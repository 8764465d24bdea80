"""Rollouts through transformers: no vLLM needed, exactly repeatable.

How completions are sampled is the matter of a ``Sampler``. One shares the prompt of a group: it and
its media go through the network once for all completions, those of all prompts decode together, and
finished rows leave the batch. The other is transformers' own ``generate``, for models whose
attention is more than causal: slower, for each completion computes its prompt, and prompts go one
by one. Both draw the next token from logits as vLLM's processed log-probs describe it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, groupby, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, GenerationConfig

from mmr1.config import SamplingConfig
from mmr1.engines import EngineConfig
from mmr1.rollout.decoding import (
    Decoder,
    PrefillState,
    decodes_together,
    prefill_alone,
    prefill_texts,
    takes_positions,
    transposed_weights,
)
from mmr1.rollout.distribution import Distribution, kept_ids, support_of
from mmr1.rollout.engines import EngineSetting, returns_experts
from mmr1.rollout.protocol import Finished, Probe, Request
from mmr1.routers import Routers, Routing, watch_routers
from mmr1.types import Completion, Prompt
from mmr1.vision.families.family import ModelFamily, ReadPrompt, is_packed
from mmr1.vision.families.loading import model_parts, packed_architecture_of, unwrapped
from mmr1.vision.families.rows import arguments_of_rows
from mmr1.vision.features import FeatureCache, encode_media
from mmr1.vision.prepare import MediaCache


def build(_: EngineConfig, setting: EngineSetting) -> HfEngine:
    """Build the engine over the model that is in this process."""
    return HfEngine(
        setting.model,
        setting.family,
        setting.media,
        shares_weights=not setting.on_ray,
        features=setting.features,
        returns_experts=returns_experts(setting.config),
    )


class HfEngine:
    """Samples from a transformers model: what one ``submit`` holds, to the end of all.

    Args:
        model: The model, with or without peft adapters.
        family: Its processor and tokens.
        media: Prepared media.
        shares_weights: It is the very module that is being trained: it has every weight already.
        features: Where those of a frozen vision tower are kept.
        returns_experts: Completions say which experts of a mixture their tokens were sent to.
    """

    def __init__(
        self,
        model: Any,
        family: ModelFamily,
        media: MediaCache,
        shares_weights: bool = False,
        features: FeatureCache | None = None,
        returns_experts: bool = False,
    ) -> None:
        self._model = model
        self._shares_weights = shares_weights
        self._family = family
        self._media = media
        routers = None
        if returns_experts:
            routers = watch_routers(unwrapped(model), "algorithm.router_replay")
        self._together = SharedPromptSampler(model, family, media, features, routers)
        self._one_by_one = GeneratingSampler(model, family, routers)
        self._decodes_up_to = 0  # tokens of the longest sequence that was tried
        self._version = 0
        self._tickets = count()
        self._waiting: list[dict[int, Request]] = []

    def submit(self, requests: Sequence[Request]) -> list[int]:
        numbered = dict(zip(self._tickets, requests, strict=False))
        if numbered:
            self._waiting.append(numbered)
        return list(numbered)

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        if not self._waiting:
            return []
        finished = []
        for sampling, members in groupby(
            self._waiting.pop(0).items(), key=lambda numbered: numbered[1].sampling
        ):
            own = dict(members)
            completions = iter(self._sample(list(own.values()), sampling))
            finished += [
                Finished(ticket, index, next(completions))
                for ticket, request in own.items()
                for index in range(len(request.seeds))
            ]
        return finished

    def cancel(self) -> int:
        self._waiting = []
        return 0

    def _sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Completion]:
        """The completions of requests, in order."""
        training = self._model.training
        self._model.eval()
        try:
            prompts = [self._read(request.prompt) for request in requests]
            sampled = self._sampler(prompts, sampling).sample(requests, prompts, sampling)
        finally:
            self._model.train(training)
        return [
            Completion(
                token_ids=np.array(row.tokens, dtype=np.int64),
                logprobs=np.array(row.logprobs, dtype=np.float32),
                text=self._family.chat.completion_text(row.tokens),
                truncated=not row.ended,
                policy_version=self._version,
                routed_experts=row.routed_experts,
                support=support_of(row.kept) if row.kept else None,
            )
            for row in sampled
        ]

    def _read(self, prompt: Prompt) -> ReadPrompt:
        return self._family.read_prompt(prompt, [self._media[m] for m in prompt.media])

    def _sampler(self, prompts: Sequence[ReadPrompt], sampling: SamplingConfig) -> Sampler:
        if is_packed(self._family):
            return self._together
        longest = longest_sequence(prompts, sampling)
        if longest > self._decodes_up_to and decodes_together(self._model, longest):
            self._decodes_up_to = longest
        return self._together if longest <= self._decodes_up_to else self._one_by_one

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        if not self._shares_weights:
            own = self._model.state_dict()
            # Not those that it has from the model's files. All or nothing: a failure changes none.
            pairs = [(name, own[name], weight) for name, weight in weights.items()]
            for name, mine, weight in pairs:
                if mine.shape != weight.shape:
                    raise ValueError(
                        f"the new {name} has the shape {list(weight.shape)}, and the engine's has "
                        f"{list(mine.shape)}; trainer and engine must load the same model.path"
                    )
            for _, mine, weight in pairs:
                mine.copy_(weight)
        self._version = version

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        probes = []
        for prompt in prompts:
            ids = self._read(prompt).ids.tolist()
            media = prompt.media if is_packed(self._family) else ()
            grids = tuple(self._media[m].grid for m in media)
            probes.append(Probe(tuple(ids), grids))
        return probes

    def close(self) -> None:
        """Do nothing: the model belongs to the caller."""


@dataclass(frozen=True, slots=True)
class GeneratingSampler:
    """Samples by transformers' ``generate``; a ``Sampler``.

    Attributes:
        model: The model, with or without peft adapters.
        family: Its tokens.
        routers: Routers of the model, whose choice is returned; None: it is not.
    """

    model: Any
    family: ModelFamily
    routers: Routers | None = None

    @torch.no_grad()
    def sample(
        self, requests: Sequence[Request], prompts: Sequence[ReadPrompt], sampling: SamplingConfig
    ) -> list[Sampled]:
        both = zip(requests, prompts, strict=True)
        with _plain_generation(unwrapped(self.model)):
            return [row for one, prompt in both for row in self._sample(one, prompt, sampling)]

    def _sample(
        self, request: Request, prompt: ReadPrompt, sampling: SamplingConfig
    ) -> list[Sampled]:
        base, family, n = unwrapped(self.model), self.family, len(request.seeds)
        length = len(prompt.ids)
        uniforms = uniforms_of([request], sampling.max_tokens, base.device)
        draw = _Draw(family, uniforms, sampling, rows_of([request]))
        ids = prompt.ids.expand(n, -1).to(base.device)
        with _recorded(self.routers) as chosen:
            base.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **arguments_of_rows(
                    [[(length, prompt.arguments)]] * n, length, base.device, base.dtype
                ),
                max_new_tokens=request.limit,
                do_sample=False,  # the draw leaves one token to choose
                eos_token_id=list(family.stop_ids),
                pad_token_id=family.pad_id,
                logits_processor=[draw],
            )
        if chosen:
            of_prompt, *steps = chosen  # of n rows each
            for place, row in enumerate(draw.sampled):
                row.prompt_experts = of_prompt[:length]  # they are the same in all rows
                row.experts = [step[place] for step in steps[: len(row.tokens) - 1]]
        return draw.sampled


@contextmanager
def _recorded(routers: Routers | None) -> Iterator[list[np.ndarray]]:
    """Put the experts that routers choose into the list: at the end, an ``[T, L, k]`` a forward."""
    chosen: list[np.ndarray] = []
    if routers is None:
        yield chosen
        return
    routers.running = routing = Routing()
    try:
        yield chosen
    finally:
        routers.running = None
    dtype = np.uint8 if routers.experts <= 256 else np.int16
    chosen += [of.cpu().numpy().astype(dtype) for of in routing.chosen(routers.layers)]


@dataclass
class _Draw:
    """Draws the next token of each row, and takes every other token's probability away.

    Attributes:
        family: Family, for the tokens.
        uniforms: ``[n, max_tokens]``.
        sampling: How to draw.
        sampled: Tokens that were drawn so far.
    """

    family: ModelFamily
    uniforms: torch.Tensor
    sampling: SamplingConfig
    sampled: list[Sampled]

    def __post_init__(self) -> None:
        self._distribution = Distribution.of(self.sampling, self.family.forbidden_ids)
        self._step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """transformers' signature: ``[n, T]`` ids so far, ``[n, V]`` logits."""
        logits = scores.float()
        drawn = next_tokens(logits, self.uniforms[:, self._step], self._distribution)
        over = torch.tensor([row.ended for row in self.sampled], device=logits.device)
        take_tokens(self.sampled, drawn, self.family, self.sampling.stop)
        # Of a row that had ended nothing is read.
        tokens = drawn.tokens.masked_fill(over, self.family.stop_ids[0])
        self._step += 1
        return torch.full_like(logits, -torch.inf).scatter(-1, tokens[:, None], 0.0)


@contextmanager
def _plain_generation(base: Any) -> Iterator[None]:
    """Ignore ``generation_config.json`` inside the block."""
    own = base.generation_config
    base.generation_config = GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = own


@dataclass(frozen=True, slots=True)
class _Padded:
    """G prompts, padded on the left to the longest, P tokens."""

    ids: torch.Tensor  # [G, P]
    attention_mask: torch.Tensor  # [G, P], 0 on padding
    positions: torch.Tensor  # [rows, G, P]
    completion_starts: torch.Tensor  # [G]: position of the first completion token
    slots: torch.Tensor  # [F]: the placeholders among the G * P tokens


@dataclass(frozen=True, slots=True)
class SharedPromptSampler:
    """Samples with each prompt computed once; a ``Sampler``.

    Attributes:
        model: The model, with or without peft adapters.
        family: Its processor and tokens.
        media: Prepared media.
        features: Where those of a frozen vision tower are kept.
        routers: Routers of the model, whose choice is returned; None: it is not.
    """

    model: Any
    family: ModelFamily
    media: MediaCache
    features: FeatureCache | None
    routers: Routers | None = None

    @torch.no_grad()
    def sample(
        self, requests: Sequence[Request], prompts: Sequence[ReadPrompt], sampling: SamplingConfig
    ) -> list[Sampled]:
        with _recorded(self.routers) as of_prompts:
            begun = self._prefill(requests, prompts)
        sizes = torch.tensor([len(r.seeds) for r in requests], device=begun.logits.device)
        decoder = Decoder(self.model, begun, sizes, longest_sequence(prompts, sampling))
        logits = begun.logits.repeat_interleave(sizes, dim=0)
        uniforms = uniforms_of(requests, sampling.max_tokens, logits.device)
        distribution = Distribution.of(sampling, self.family.forbidden_ids)
        sampled = rows_of(requests)
        _give_prompts(sampled, requests, prompts, of_prompts)
        rows = sampled  # the unfinished ones
        with transposed_weights(unwrapped(self.model)):
            for step in range(max(row.limit for row in rows)):
                drawn = next_tokens(logits, uniforms[:, step], distribution)
                take_tokens(rows, drawn, self.family, sampling.stop)
                tokens = drawn.tokens
                alive = torch.tensor([not row.is_over for row in rows], device=tokens.device)
                rows = [row for row in rows if not row.is_over]
                if not rows:
                    break
                if len(rows) < len(alive):
                    tokens, uniforms = tokens[alive], uniforms[alive]
                    decoder.keep(alive)
                with _recorded(self.routers) as of_step:
                    logits = decoder.step(tokens).float()
                for row, experts in zip(rows, of_step[0] if of_step else (), strict=False):
                    row.experts.append(experts)
        return sampled

    def _prefill(self, requests: Sequence[Request], prompts: Sequence[ReadPrompt]) -> PrefillState:
        """Run each prompt once."""
        base, parts, family = unwrapped(self.model), model_parts(self.model), self.family
        if not is_packed(family):
            if not family.placeholder_kinds and takes_positions(base):
                return prefill_texts(base, prompts)
            return PrefillState.joined([prefill_alone(base, prompt) for prompt in prompts])
        architecture = packed_architecture_of(base)
        media = [self.media[m] for request in requests for m in request.prompt.media]
        batch = _padded(prompts, list(family.placeholder_kinds), base.device)
        embeddings = parts.embed_tokens(batch.ids)
        tokens = {"inputs_embeds": embeddings}
        if media:
            encoded = encode_media(base, media, self.features).to(embeddings.dtype)
            tokens = architecture.language_inputs(embeddings, batch.slots, encoded)
        cache = DynamicCache(config=base.config)
        hidden = parts.language_model(
            **tokens,
            position_ids=architecture.position_ids(batch.positions),
            attention_mask=batch.attention_mask,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        starts = batch.completion_starts.expand(architecture.position_rows, 1, -1)
        return PrefillState(
            parts.lm_head(hidden[:, -1]).float(),
            [(layer.keys, layer.values) for layer in cache.layers],
            batch.attention_mask.bool(),
            architecture.position_ids(starts),
        )


def _give_prompts(
    sampled: Sequence[Sampled],
    requests: Sequence[Request],
    prompts: Sequence[ReadPrompt],
    chosen: Sequence[np.ndarray],
) -> None:
    """Give completions the experts of their prompts: of a forward each, or padded on the left."""
    if not chosen:
        return
    rows = iter(sampled)
    of_prompts: Sequence[np.ndarray] = chosen
    if len(chosen) < len(requests):
        of_prompts = list(chosen[0].reshape(len(requests), -1, *chosen[0].shape[1:]))
    for request, prompt, experts in zip(requests, prompts, of_prompts, strict=True):
        for row in islice(rows, len(request.seeds)):
            row.prompt_experts = experts[-len(prompt.ids) :]


def longest_sequence(prompts: Sequence[ReadPrompt], sampling: SamplingConfig) -> int:
    """Tokens of the longest sequence that there may be."""
    return max((len(prompt.ids) for prompt in prompts), default=0) + sampling.max_tokens


def _padded(
    prompts: Sequence[ReadPrompt], placeholders: Sequence[int], device: torch.device
) -> _Padded:
    left: dict[str, Any] = {"batch_first": True, "padding_side": "left"}
    tokens = pad_sequence([p.ids for p in prompts], **left).to(device)
    real = pad_sequence([torch.ones_like(p.ids) for p in prompts], **left).to(device)
    # [G, P, rows]: a batch is padded along its first dimension
    positions = pad_sequence([p.positions.T for p in prompts], **left).to(device)
    of_media = torch.tensor(placeholders, dtype=torch.int64, device=device)
    slots = (torch.isin(tokens, of_media) & real.bool()).flatten().nonzero()[:, 0]
    starts = torch.tensor([p.completion_start for p in prompts], device=device)
    return _Padded(tokens, real, positions.permute(2, 0, 1), starts, slots)


@dataclass(slots=True)
class Sampled:
    """The tokens of one completion so far, and their log-probs under the sampling distribution.

    Attributes:
        limit: Tokens that it may have.
        kept: Ids that could have been sampled in each token's place; empty where nothing is cut.
        ended: Its last token ended it.
        prompt_experts, experts: See ``Completion.routed_experts``; None where not asked for.
    """

    limit: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)
    ended: bool = False
    prompt_experts: np.ndarray | None = None
    experts: list[np.ndarray] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """True if no token may follow."""
        return self.ended or len(self.tokens) == self.limit

    @property
    def routed_experts(self) -> tuple[np.ndarray, np.ndarray] | None:
        if self.prompt_experts is None:
            return None
        prompt = np.ascontiguousarray(self.prompt_experts)
        return prompt, np.array(self.experts, prompt.dtype).reshape(-1, *prompt.shape[1:])


class Sampler(Protocol):
    """Samples from a transformers model, which is in evaluation mode then."""

    def sample(
        self, requests: Sequence[Request], prompts: Sequence[ReadPrompt], sampling: SamplingConfig
    ) -> list[Sampled]:
        """The completions of all requests, those of a request next to each other."""
        ...


def rows_of(requests: Sequence[Request]) -> list[Sampled]:
    """A row for each completion of requests, without a token so far."""
    return [Sampled(request.limit) for request in requests for _ in request.seeds]


def uniforms_of(requests: Sequence[Request], length: int, device: torch.device) -> torch.Tensor:
    """The numbers in [0, 1) that decide the tokens of each completion: ``[B, length]``."""
    seeds = [seed for request in requests for seed in request.seeds]
    numbers = [torch.rand(length, generator=torch.Generator().manual_seed(s)) for s in seeds]
    return torch.stack(numbers).to(device)


def take_tokens(
    rows: Sequence[Sampled], drawn: Drawn, family: ModelFamily, stop: Sequence[str]
) -> None:
    """Append its token to each row that has not ended."""
    tokens, logprobs = drawn.tokens.tolist(), drawn.logprobs.tolist()
    for index, row in enumerate(rows):
        if not row.ended:
            row.tokens.append(tokens[index])
            row.logprobs.append(logprobs[index])
            if drawn.kept is not None:
                row.kept.append(drawn.kept[index])
            row.ended = has_ended(row.tokens, family, stop)


def has_ended(tokens: Sequence[int], family: ModelFamily, stop: Sequence[str]) -> bool:
    """True if the last token is a stop token, or completed one of the texts."""
    if tokens[-1] in family.stop_ids:
        return True
    if not stop:
        return False
    longest = max(len(text.encode()) for text in stop)  # a token is at least a byte of it
    tail = family.tokenizer.decode(tokens[-longest:])
    return any(text in tail for text in stop)


class Drawn(NamedTuple):
    """One token for each of B rows.

    Attributes:
        tokens: ``[B]`` int64.
        logprobs: ``[B]`` float32, under the sampling distribution.
        kept: Ids that could have been drawn in each row; None where nothing is cut.
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor
    kept: list[np.ndarray] | None


def next_tokens(logits: torch.Tensor, uniforms: torch.Tensor, distribution: Distribution) -> Drawn:
    """Sample one token per row by inverting the cumulative distribution.

    One uniform number decides one token, so a completion depends on its own seed and not on the
    rows that happen to be beside it.

    Args:
        logits: ``[B, V]`` float32; forbidden ids are written over.
        uniforms: ``[B]`` in [0, 1).
    """
    logprobs = distribution.log_probs(logits)
    cumulative = logprobs.exp().cumsum(-1)
    # Rounding leaves the last entry near 1; scaling by it keeps every index inside the vocabulary.
    thresholds = uniforms[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, thresholds, right=True)
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    kept = None if distribution.keeps_all else kept_ids(logprobs)
    return Drawn(tokens[:, 0], logprobs.gather(-1, tokens)[:, 0], kept)
