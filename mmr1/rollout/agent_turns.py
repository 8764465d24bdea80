"""The turns of one agent program: which request continues which, and what is learned from them.

A program sends its whole conversation with every request, as messages. Text read back does not give
the token ids that were sampled, so a turn is found again by what its messages say, and its ids are
held: the next prompt is those ids and a bridge of what is new. A conversation that continues no
turn, because the program rewrote it or began another, is rendered from its messages: a fork.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from mmr1.environments.chat_messages import ChatMessage, Pictures, Reply, read_message, reply
from mmr1.rollout.conversations import turn_seed
from mmr1.types import (
    Completion,
    MediaRef,
    Message,
    Prompt,
    Sample,
    Span,
    Status,
    media_of,
)
from mmr1.vision.families.family import PackedFamily
from mmr1.vision.prepare import MediaCache


@dataclass
class Turn:
    """One request, and what was sampled for it.

    Attributes:
        prompt: Token ids, placeholders not expanded.
        media: Of the prompt.
        parent: The turn that it continues; None for one that was rendered.
        cut: It continues without the token that ended its parent: the program wrote text behind it.
        with_tools: The request may be answered with calls.
        ids, logprobs: What was sampled.
        text: Of what was sampled.
    """

    prompt: tuple[int, ...]
    media: tuple[MediaRef, ...]
    seed: int
    parent: Turn | None = None
    cut: bool = False
    with_tools: bool = False
    stop: tuple[str, ...] = ()
    before: bytes = b""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    truncated: bool = False
    version: int = 0
    reply: Reply | None = None

    def context(self, prompt: Prompt) -> Prompt:
        """The prompt of the turn, as an engine takes it."""
        return Prompt(prompt.sample, prompt.text, self.prompt, shown=self.media)


class Turns:
    """The turns of one episode.

    Args:
        seed: Of the episode. A request with the same messages has the same seed, whenever it comes.
        special: Tokens of the chat template that no message may hold.
    """

    def __init__(
        self, sample: Sample, seed: int, family: PackedFamily, special: Sequence[str]
    ) -> None:
        self.all: list[Turn] = []
        self._sample, self._seed, self._family, self._special = sample, seed, family, special
        self._pictures = Pictures(sample)
        self._by_key: dict[bytes, Turn] = {}
        self._asked: Counter[bytes] = Counter()

    def open(self, body: Mapping[str, Any]) -> Turn:
        """The turn that a request asks for.

        Raises:
            ValueError: The request cannot be read, or not rendered.
        """
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages is a list with at least one message")
        read = [read_message(raw, self._pictures, self._special) for raw in messages]
        if read[-1].message.role == "assistant":
            raise ValueError("the last message is the assistant's; a turn follows one of another")
        tools = body.get("tools") or ()
        keys = list(_chain(json.dumps(tools, sort_keys=True).encode(), read))
        stop = body.get("stop") or ()
        family = self._family.with_tools(tools) if tools else self._family
        turn = self._bridged(read, keys, family) or self._rendered(read, family)
        turn.before, turn.with_tools = keys[-1], bool(tools)
        turn.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        number = self._asked[turn.before]
        self._asked[turn.before] += 1
        turn.seed = turn_seed(int.from_bytes(turn.before[:6], "big") ^ self._seed, number)
        return turn

    def take(self, turn: Turn, sampled: Completion) -> Reply:
        """Take the tokens sampled for a turn; a stop string ends it, and stays in the text kept."""
        turn.ids, turn.logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()
        turn.text, turn.truncated = sampled.text, sampled.truncated
        turn.version = sampled.policy_version
        told = self._stopped(turn)
        turn.reply = reply(told, turn.with_tools, turn.seed)
        self.all.append(turn)
        for text in {told, turn.text}:
            message = {**turn.reply.message, **({} if turn.reply.ids else {"content": text})}
            said = read_message(message, self._pictures)
            self._by_key[_next(turn.before, said)] = turn
        return turn.reply

    def _stopped(self, turn: Turn) -> str:
        """The text before the first stop string. Tokens after that one are dropped."""
        places = [(turn.text.find(stop), stop) for stop in turn.stop if stop in turn.text]
        if not places:
            return turn.text
        place, stop = min(places)

        def text_of(count: int) -> str:
            return self._family.tokenizer.decode(turn.ids[:count], skip_special_tokens=True)

        # The fewest tokens whose text has it.
        fewer = range(1, len(turn.ids))
        kept = 1 + bisect_left(fewer, True, key=lambda count: stop in text_of(count))
        del turn.ids[kept:], turn.logprobs[kept:]
        told, turn.truncated = turn.text[:place], False
        turn.text = text_of(kept)
        return told

    def _bridged(
        self, read: Sequence[ChatMessage], keys: Sequence[bytes], family: PackedFamily
    ) -> Turn | None:
        """The turn, if it continues one whose ids are held."""
        last = max((n for n, m in enumerate(read) if m.message.role == "assistant"), default=-1)
        if last < 0:
            return None
        parent, written = self._by_key.get(keys[last]), ""
        if parent is None:
            parent, written = self._written_on(read[last], keys[last - 1] if last else b"")
        if parent is None or not (new := _in_order(read[last + 1 :], parent)):
            return None
        ended = parent.ids[-1] in family.stop_ids
        try:
            text = family.observation_text(new, ended and not written)
        except ValueError:
            return None
        held = parent.ids[:-1] if ended and written else parent.ids
        own, bridge = (
            family.tokenizer(said, add_special_tokens=False)["input_ids"]
            for said in (written, text)
        )
        return Turn(
            (*parent.prompt, *held, *own, *bridge),
            (*parent.media, *media_of(new)),
            0,
            parent,
            cut=ended and bool(written),
        )

    def _written_on(self, said: ChatMessage, before: bytes) -> tuple[Turn | None, str]:
        """The turn to whose text the program added more, and the addition."""
        for turn in reversed(self.all):
            assert turn.reply is not None
            if turn.before != before or turn.reply.ids or not said.text or not turn.text:
                continue
            if said.text.startswith(turn.text):
                return turn, said.text[len(turn.text) :]
        return None, ""

    def _rendered(self, read: Sequence[ChatMessage], family: PackedFamily) -> Turn:
        sample = Sample(self._sample.id, tuple(m.message for m in read))
        prompt = family.render_prompt(sample)
        return Turn(prompt.token_ids, sample.media, 0)


def _chain(begin: bytes, read: Sequence[ChatMessage]) -> Iterator[bytes]:
    """A digest of all messages up to each."""
    key = begin
    for message in read:
        key = _next(key, message)
        yield key


def _next(key: bytes, message: ChatMessage) -> bytes:
    return hashlib.blake2b(key + message.digest, digest_size=16).digest()


def _in_order(read: Sequence[ChatMessage], parent: Turn) -> list[Message]:
    """New messages, answers of tools in the order of the calls: templates write no ids of calls."""
    assert parent.reply is not None
    place = {id_: number for number, id_ in enumerate(parent.reply.ids)}
    answers = [m for m in read if m.message.role == "tool"]
    answers.sort(key=lambda m: place.get(m.answers or "", len(place)))
    in_order = iter(answers)
    return [next(in_order).message if m.message.role == "tool" else m.message for m in read]


def conversations(turns: Sequence[Turn]) -> list[list[Turn]]:
    """The conversations that end with a turn that no other continues."""
    inner = {id(turn.parent) for turn in turns if turn.parent is not None}
    chains = []
    for leaf in turns:
        if id(leaf) in inner:
            continue
        chain, turn = [leaf], leaf.parent
        while turn is not None:
            chain.append(turn)
            turn = turn.parent
        chains.append(chain[::-1])
    return chains


def shared_prompt(prompt: Prompt, firsts: Sequence[Turn], family: PackedFamily) -> Prompt:
    """The prompt that all conversations of a group begin with.

    Args:
        prompt: Of the sample.
        firsts: The turn that each was rendered for.

    Raises:
        ValueError: They have no token in common.
    """
    ids = firsts[0].prompt[: _alike([turn.prompt for turn in firsts])]
    placeholders = family.placeholder_kinds
    # Pictures that all of them begin with.
    alike = _alike([[m.digest() for m in turn.media] for turn in firsts])
    places = [n for n, token in enumerate(ids) if token in placeholders]
    whole = all(len(turn.prompt) == len(ids) for turn in firsts) and len(places) == alike
    if not whole:  # in the midst of a message: back to where its role is named
        ids = ids[: places[alike]] if len(places) > alike else ids
        added = family.tokenizer.added_tokens_decoder
        special = {i for i, token in added.items() if token.special and i not in placeholders}
        starts = [n for n, token in enumerate(ids) if token in special]
        ids = ids[: max(starts[-1] if starts else len(ids), 1)]
    if not ids or ids[0] in placeholders:
        raise ValueError(
            f"record '{prompt.sample.id}': the conversations of its programs have no token in "
            "common; let them begin with the same system prompt"
        )
    media = firsts[0].media[: sum(token in placeholders for token in ids)]
    text = family.tokenizer.decode(ids, skip_special_tokens=False)
    return Prompt(prompt.sample, text, tuple(ids), shown=media)


def _alike(rows: Sequence[Sequence[Any]]) -> int:
    """The length of the common prefix."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in takewhile(lambda column: len({*column}) == 1, columns))


@dataclass
class _Run:
    """A run of tokens in a conversation, with or without a gradient."""

    turn: Turn | None
    ids: list[int]
    logprobs: list[float]


def completion(
    turns: Sequence[Turn],
    prompt: Prompt,
    family: PackedFamily,
    media: MediaCache,
    reward: float | None = None,
    failure: tuple[Status, str] | None = None,
    truncated: bool = False,
) -> Completion:
    """The turns of an episode as one completion of the prompt that they share.

    Each turn is learnt once; where two conversations continue it, the second has it as context.
    """
    tokens: list[int] = []
    logprobs: list[float] = []
    spans: list[Span] = []
    learnt: set[int] = set()
    for chain in conversations(turns):
        shown = list(chain[-1].media[len(prompt.media) :])
        fork = bool(spans)
        for run in _runs(chain, len(prompt.token_ids), learnt):
            count = sum(token in family.placeholder_kinds for token in run.ids)
            own, shown = shown[:count], shown[count:]
            ids = family.expand_placeholders(run.ids, [media[m] for m in own])
            tokens += ids
            if run.turn is None:
                logprobs += [0.0] * len(ids)
                text = family.tokenizer.decode(run.ids, skip_special_tokens=True)
                spans.append(Span("tool", len(ids), text, tuple(own), fork=fork))
            else:
                logprobs += run.logprobs
                assert run.turn.reply is not None
                calls = run.turn.reply.calls
                spans.append(Span("assistant", len(ids), run.turn.text, (), calls, fork=fork))
            fork = False
    return Completion(
        token_ids=np.array(tokens, dtype=np.int64),
        logprobs=np.array(logprobs, dtype=np.float32),
        text=turns[-1].text,
        truncated=truncated or turns[-1].truncated,
        policy_version=min(turn.version for turn in turns),
        spans=tuple(spans),
        reward=reward,
        failure=failure,
    )


def _runs(chain: Sequence[Turn], begin: int, learnt: set[int]) -> list[_Run]:
    """The runs of a conversation behind the first ``begin`` tokens, without empty ones."""
    runs = [_Run(None, [], [])]
    length = begin
    for turn in chain:
        if turn.cut:
            length -= 1
            del runs[-1].ids[-1:], runs[-1].logprobs[-1:]
        new = list(turn.prompt[length:])
        if runs[-1].turn is None:
            runs[-1].ids += new
        else:
            runs.append(_Run(None, new, []))
        if id(turn) in learnt:
            runs[-1].ids += turn.ids
        else:
            runs.append(_Run(turn, list(turn.ids), list(turn.logprobs)))
            learnt.add(id(turn))
        length = len(turn.prompt) + len(turn.ids)
    return [run for run in runs if run.ids]
