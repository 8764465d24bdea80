"""The reference policy: a frozen copy, the policy with its adapters off, or behind a server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from mmr1.rewards.http.addresses import key_headers, parse_address
from mmr1.rewards.http.post import Failure, JsonPost, LoopThread
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.logprob_head import Distributions
from mmr1.trainer.forward.micro_batches import MicroBatch
from mmr1.trainer.forward.sequences import ModelInputs, completion_mask
from mmr1.trainer.models.lora import adapter_weights, set_adapter_weights
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.types import MediaRef, RolloutGroup


class Reference(Protocol):
    """The protocol of a reference policy."""

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient, sequences in group order."""
        ...

    def refresh(self, share: float = 1.0) -> None:
        """Become the policy as it is now (iterative GRPO), or move towards it.

        Args:
            share: Share of the policy in the new weights; the rest are the old ones (TR-DPO, arXiv
                2404.09656).
        """
        ...

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights that differ from the policy's start, by name: for checkpoints."""
        ...

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Restore the reference that these weights were taken from."""
        ...


class SupportsDistributions(Protocol):
    """A reference in the policy's own process, for the KL over the vocabulary."""

    def distributions(self, batch: MicroBatch) -> Distributions:
        """The distributions that it would draw the batch's completion tokens from. No gradient."""
        ...


class FrozenReference:
    """A frozen second model, ``own``: the policy as it was, or another model.

    Args:
        offload: It is whole, stays in main memory, and comes to the policy's device to score. Not
            for ``distributions``, which the update asks for in every micro-batch.
    """

    def __init__(self, policy: PackedModel, own: PackedModel, offload: bool = False) -> None:
        self._policy = policy
        self._own = own
        self._offload = offload
        if offload:
            own.model.to("cpu")

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        if self._offload:
            self._own.model.to(self._policy.model.device)
        try:
            return self._own.scores(groups).logprobs
        finally:
            if self._offload:
                self._own.model.to("cpu")

    def distributions(self, batch: MicroBatch) -> Distributions:
        return self._own.distributions(batch)

    def refresh(self, share: float = 1.0) -> None:
        policy = self._policy.weights()
        if share == 1:
            self._own.load_weights(policy)
            return
        own = self._own.weights()
        self._own.load_weights({name: own[name].lerp(policy[name], share) for name in own})

    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._own.weights()

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._own.load_weights(weights)


class AdapterReference:
    """The policy's model with its adapters switched off; once refreshed, with a copy of them."""

    def __init__(self, policy: PackedModel) -> None:
        self._policy = policy
        self._kept: dict[str, torch.Tensor] | None = None

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        with _adapters(self._policy.model, self._kept):
            return self._policy.logprobs(groups)

    def distributions(self, batch: MicroBatch) -> Distributions:
        with _adapters(self._policy.model, self._kept):
            return self._policy.distributions(batch)

    def refresh(self, share: float = 1.0) -> None:
        assert share == 1, "LoRA adapters cannot be averaged; the configuration refuses it"
        self._kept = adapter_weights(self._policy.model)

    def weights(self) -> Mapping[str, torch.Tensor]:
        if self._kept is not None:
            return self._kept
        # Adapters of zeros are none.
        current = adapter_weights(self._policy.model)
        return {name: torch.zeros_like(tensor) for name, tensor in current.items()}

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._kept = dict(weights)


@contextmanager
def _adapters(model: Any, weights: dict[str, torch.Tensor] | None) -> Iterator[None]:
    """Give the model these adapters, or none, inside the block."""
    if weights is None:
        with model.disable_adapter():
            yield
        return
    current = adapter_weights(model)
    set_adapter_weights(model, weights)
    try:
        yield
    finally:
        set_adapter_weights(model, current)


_PATH = "/inference/v1/generate"
API_KEY = "VLLM_API_KEY"
"""The environment variable that holds the server's key."""

_TIMEOUT_S = 600.0  # of one call; a busy server has a queue
_RETRIES = 4
_PARALLEL = 64
_REPLY_BYTES = 1 << 20  # the longest reply: this,
_REPLY_BYTES_PER_TOKEN = 1 << 10  # and this for every token of it


class ReferenceServerError(RuntimeError):
    """The server gave no log-probs. The message is for the user."""


class ServedReference:
    """A reference policy whose log-probs a server computes, at temperature 1.

    ``POST /inference/v1/generate`` takes the tokens of prompt and completion as they are, with the
    pictures as data URLs, and gives the log-probs of its prompt; ``vllm serve MODEL
    --enable-scale-out`` has it. The log-probs are over the whole vocabulary, the tokens that the
    policy is forbidden included. The server must have the policy's tokenizer and image processor.
    The environment variable ``VLLM_API_KEY`` is sent as the key, where it is set.

    Args:
        url: The server's address, without a path.
        inputs: Inputs of the policy: how many tokens a prompt has with its media.
        context: Ranks that are given the same groups: one of them asks.
        section: The configuration's, for errors.

    Raises:
        ValueError: The address is none.
    """

    def __init__(
        self,
        url: str,
        inputs: ModelInputs,
        context: Context | None = None,
        section: str = "algorithm.kl.reference",
    ) -> None:
        self._inputs, self._context, self._section = inputs, context, section
        self._post = JsonPost(
            [parse_address(url.rstrip("/") + _PATH)],
            key_headers(API_KEY if os.environ.get(API_KEY) else None),
            retries=_RETRIES,
            timeout_s=_TIMEOUT_S,
        )
        self._thread = LoopThread()

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32, sequences in group order.

        Raises:
            ReferenceServerError: The server does not answer, or reads a prompt differently.
            ValueError: A prompt has a video, or a completion a picture of its own.
        """
        if self._context is None:
            return self._asked(groups)
        return self._context.broadcast(self._asked(groups) if self._context.rank == 0 else None)

    def _asked(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        rows = self._thread.run(self._ask_all(groups))
        sampled = completion_mask(groups)
        logprobs = torch.zeros(sampled.shape)
        for row, values in enumerate(rows):
            logprobs[row, : len(values)] = torch.tensor(values)
        return logprobs * sampled

    def refresh(self, share: float = 1.0) -> None:
        raise AssertionError("a served reference stays; the configuration refuses to move it")

    def weights(self) -> Mapping[str, torch.Tensor]:
        """No weights: the server is the same whenever the run resumes."""
        return {}

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        assert not weights, "a served reference has no weights here"

    async def _ask_all(self, groups: Sequence[RolloutGroup]) -> list[list[float]]:
        turn = asyncio.Semaphore(_PARALLEL)

        async def ask(body: bytes, name: str, tokens: int, length: int) -> list[float]:
            async with turn:
                parse = partial(completion_logprobs, tokens=tokens, length=length)
                reply_bytes = _REPLY_BYTES + _REPLY_BYTES_PER_TOKEN * tokens
                answer = await self._post.ask(body, parse, reply_bytes)
            if isinstance(answer, Failure):
                raise ReferenceServerError(f"{self._section}.url, prompt '{name}': {answer.error}")
            return answer

        return await asyncio.gather(*(ask(*call) for call in self._calls(groups)))

    def _calls(self, groups: Sequence[RolloutGroup]) -> Iterator[tuple[bytes, str, int, int]]:
        """The request of each completion: body, id of the prompt, all tokens, completion tokens."""
        for group, inputs in zip(groups, self._inputs.of(groups), strict=True):
            name = group.prompt.sample.id
            parts = [self._content_part(name, medium) for medium in group.prompt.media]
            for completion in group.completions:
                if completion.media:
                    raise ValueError(
                        f"'{name}' was answered with pictures of tools, which a reference behind a "
                        f"server does not see; name a model directory in {self._section}.path"
                    )
                length = len(completion.token_ids)
                body = {
                    "token_ids": [*group.prompt.token_ids, *completion.token_ids.tolist()],
                    # The log-probs of the tokens themselves and of no others.
                    "sampling_params": {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0},
                    **({"content_parts": parts} if parts else {}),
                }
                yield json.dumps(body).encode(), name, len(inputs.prompt_ids) + length, length

    def _content_part(self, name: str, medium: MediaRef) -> dict[str, str]:
        """The picture in the size that the model sees, so that the server does not resize it."""
        if medium.kind != "image":
            raise ValueError(
                f"sample '{name}' has a {medium.kind}; a reference behind a server scores images "
                "and text only: leave such samples out, or name a model directory"
            )
        png = io.BytesIO()
        self._inputs.family.decode_media(medium).save(png, "PNG")
        data = base64.b64encode(png.getvalue()).decode()
        return {"type": "image_url", "url": f"data:image/png;base64,{data}"}


def completion_logprobs(reply: Any, *, tokens: int, length: int) -> list[float]:
    """The log-probs of the last ``length`` tokens of a reply's prompt.

    Raises:
        ValueError: The reply has none, or its prompt is not of ``tokens`` tokens.
    """
    entries = reply.get("prompt_logprobs") if isinstance(reply, dict) else None
    if not isinstance(entries, list):
        raise ValueError("its reply has no prompt_logprobs; is it vLLM with --enable-scale-out?")
    if len(entries) != tokens:
        raise ValueError(
            f"it reads a prompt and its completion as {len(entries)} tokens, which are {tokens} "
            "here; start it with the same pixel budget (vllm serve --mm-processor-kwargs)"
        )
    return [_logprob(entry) for entry in entries[-length:]]


def _logprob(entry: Any) -> float:
    """The log-prob in ``{token id: {"logprob": x, ...}}`` with one token."""
    if isinstance(entry, dict) and len(entry) == 1:
        (of_token,) = entry.values()
        value = of_token.get("logprob") if isinstance(of_token, dict) else None
        if isinstance(value, int | float):
            return float(value)
    raise ValueError(f"its prompt_logprobs hold {str(entry)[:80]!r} for a token")
