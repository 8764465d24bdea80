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
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np

from mmr1.rollout.conversations import turn_seed
from mmr1.rollout.distribution import join_supports, select_support
from mmr1.types import (
    Completion,
    MediaRef,
    Message,
    Prompt,
    Sample,
    Span,
    Status,
    Support,
    media_of,
)
from mmr1.vision.families.family import ModelFamily, is_packed
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.agents.chat_messages import ChatMessage, Pictures, Reply, read_message, reply


@dataclass(frozen=True, slots=True)
class Bridge:
    """The text between a turn and the next one.

    Attributes:
        written: Token ids of what the program wrote behind the turn.
        text: Text that follows, with a placeholder for each medium.
        ids: Token ids of both, placeholders not expanded.
    """

    written: tuple[int, ...] = ()
    text: str = ""
    ids: tuple[int, ...] = ()
    media: tuple[MediaRef, ...] = ()

    def read(self, family: ModelFamily, media: MediaCache) -> tuple[int, ...]:
        """Token ids as the model reads them. Raises ValueError if it cannot be shown a medium."""
        if not self.media:
            return self.ids
        return (*self.written, *family.read_text(self.text, [media[m] for m in self.media]))


@dataclass
class Turn:
    """One request, and what was sampled for it.

    Attributes:
        first: The prompt that its conversation was rendered as.
        prompt: Token ids, placeholders not expanded.
        parent: The turn that it continues; None for one that was rendered.
        bridge: Bridge between the two.
        since: See ``Prompt``.
        cut: It continues without the token that ended its parent: the program wrote text behind it.
        with_tools: The request may be answered with calls.
        ids, logprobs, support: Sampled tokens; see ``Completion``.
        text: Text of the sampled tokens.
    """

    first: Prompt
    prompt: tuple[int, ...]
    seed: int = 0
    parent: Turn | None = None
    bridge: Bridge = Bridge()
    since: tuple[tuple[tuple[int, ...], int], ...] = ()
    cut: bool = False
    with_tools: bool = False
    stop: tuple[str, ...] = ()
    before: bytes = b""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    support: Support | None = None
    text: str = ""
    truncated: bool = False
    version: int = 0
    reply: Reply | None = None

    @property
    def observed(self) -> tuple[MediaRef, ...]:
        """The media since its conversation was rendered."""
        return () if self.parent is None else (*self.parent.observed, *self.bridge.media)

    @property
    def media(self) -> tuple[MediaRef, ...]:
        return (*self.first.media, *self.observed)

    @property
    def held(self) -> list[int]:
        """The ids of its parent that it continues."""
        assert self.parent is not None
        return self.parent.ids[:-1] if self.cut else self.parent.ids

    def read(self, family: ModelFamily, media: MediaCache) -> None:
        """Read what is new in it. Raises ValueError if the model cannot be shown a medium."""
        if self.parent is not None and not self.since:
            new = (self.bridge.read(family, media), len(self.bridge.media))
            self.since = (*self.parent.since, (tuple(self.held), 0), new)

    def context(self, prompt: Prompt) -> Prompt:
        """The prompt of the turn, as an engine takes it."""
        return replace(
            self.first,
            sample=prompt.sample,
            token_ids=self.prompt,
            observed=self.observed,
            shown=self.first.media,
            since=self.since,
        )


class Turns:
    """The turns of one episode.

    Args:
        seed: Seed of the episode. A request with the same messages has the same seed, whenever it
            comes.
        special: Tokens of the chat template that no message may hold.
    """

    def __init__(
        self, sample: Sample, seed: int, family: ModelFamily, special: Sequence[str]
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
        places = sum(token in family.placeholder_kinds for token in turn.prompt)
        if places != (asked := len(turn.media)):
            raise ValueError(
                f"the chat template writes {places} of {asked} pictures of the conversation; send "
                "them in messages of the user, or name another template in data.chat_template"
            )
        turn.before, turn.with_tools = keys[-1], bool(tools)
        turn.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        number = self._asked[turn.before]
        self._asked[turn.before] += 1
        turn.seed = turn_seed(int.from_bytes(turn.before[:6], "big") ^ self._seed, number)
        return turn

    def take(self, turn: Turn, sampled: Completion) -> Reply:
        """Take the tokens sampled for a turn; a stop string ends it, and stays in the text kept."""
        turn.ids, turn.logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()
        turn.support = sampled.support
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
            return self._family.chat.completion_text(turn.ids[:count])

        # The fewest tokens whose text has it.
        fewer = range(1, len(turn.ids))
        kept = 1 + bisect_left(fewer, True, key=lambda count: stop in text_of(count))
        del turn.ids[kept:], turn.logprobs[kept:]
        if turn.support is not None:
            turn.support = select_support(turn.support, slice(kept))
        told, turn.truncated = turn.text[:place], False
        turn.text = text_of(kept)
        return told

    def _bridged(
        self, read: Sequence[ChatMessage], keys: Sequence[bytes], family: ModelFamily
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
            text = family.chat.observation_text(new, ended and not written)
        except ValueError:
            return None
        own, then = (
            family.tokenizer(said, add_special_tokens=False)["input_ids"]
            for said in (written, text)
        )
        bridge = Bridge(tuple(own), text, (*own, *then), media_of(new))
        turn = Turn(parent.first, (), 0, parent, bridge, cut=ended and bool(written))
        turn.prompt = (*parent.prompt, *turn.held, *bridge.ids)
        return turn

    def _written_on(self, said: ChatMessage, before: bytes) -> tuple[Turn | None, str]:
        """The turn to whose text the program added more, and the addition."""
        for turn in reversed(self.all):
            assert turn.reply is not None
            if turn.before != before or turn.reply.ids or not said.text or not turn.text:
                continue
            if said.text.startswith(turn.text):
                return turn, said.text[len(turn.text) :]
        return None, ""

    def _rendered(self, read: Sequence[ChatMessage], family: ModelFamily) -> Turn:
        sample = Sample(self._sample.id, tuple(m.message for m in read))
        prompt = family.render_prompt(sample)
        return Turn(prompt, prompt.token_ids)


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


def shared_prompt(prompt: Prompt, firsts: Sequence[Turn], family: ModelFamily) -> Prompt:
    """The prompt that all conversations of a group begin with.

    Args:
        prompt: Prompt of the sample.
        firsts: The turn that each was rendered for.

    Raises:
        ValueError: If the conversations have no token in common.
    """
    first, kinds = firsts[0].first, family.placeholder_kinds
    ids = first.token_ids[: _alike([turn.first.token_ids for turn in firsts])]
    # Pictures that all of them begin with.
    alike = _alike([[m.digest() for m in turn.first.media] for turn in firsts])
    places = [n for n, token in enumerate(ids) if token in kinds]
    if all(len(t.first.token_ids) == len(ids) for t in firsts) and len(places) == alike:
        return replace(first, sample=prompt.sample, shown=first.media)
    # In the midst of a message: back to where its role is named.
    added = family.tokenizer.added_tokens_decoder
    special = {i for i, token in added.items() if token.special and i not in kinds}
    for most in (alike, 0):
        end = places[most] if len(places) > most else len(ids)
        starts = [n for n, token in enumerate(ids[:end]) if token in special]
        cut = ids[: max(starts[-1], 1)] if starts else ids[:end]
        media = first.media[: sum(token in kinds for token in cut)]
        # Another processor than a packed family's reads the pictures of a text together.
        if is_packed(family) or all(len(turn.first.media) == len(media) for turn in firsts):
            break
    if not cut or cut[0] in kinds:
        raise ValueError(_nothing_shared(prompt))
    text = family.tokenizer.decode(cut, skip_special_tokens=False)
    if starts and starts[-1]:  # as it was written, which no tokenizer promises to decode
        written, before = str(added[ids[starts[-1]]]), cut.count(ids[starts[-1]])
        text = written.join(first.text.split(written)[: before + 1])
    return Prompt(prompt.sample, text, cut, shown=media)


def _nothing_shared(prompt: Prompt) -> str:
    return (
        f"record '{prompt.sample.id}': the conversations of its programs have no token in "
        "common; let them begin with the same system prompt"
    )


def _alike(rows: Sequence[Sequence[Any]]) -> int:
    """The length of the common prefix."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in takewhile(lambda column: len({*column}) == 1, columns))


@dataclass
class _Run:
    """A run of tokens in a conversation, with or without a gradient.

    Attributes:
        ids: Placeholders not expanded.
        tokens: Tokens as the model reads them.
    """

    turn: Turn | None
    ids: list[int]
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    media: list[MediaRef] = field(default_factory=list)
    support: Support | None = None


def completion(
    turns: Sequence[Turn],
    prompt: Prompt,
    family: ModelFamily,
    media: MediaCache,
    reward: float | None = None,
    failure: tuple[Status, str] | None = None,
    truncated: bool = False,
) -> Completion:
    """The turns of an episode as one completion of the prompt that they share.

    Each turn is learnt once; where two conversations continue it, the second has it as context.

    Raises:
        ValueError: The prompt's text is not read as the beginning of the conversations.
    """
    tokens: list[int] = []
    logprobs: list[float] = []
    supports: list[Support | int] = []
    spans: list[Span] = []
    learnt: set[int] = set()
    for chain in conversations(turns):
        fork = bool(spans)
        for turn in chain:
            turn.read(family, media)
        for run in _runs(chain, _behind(prompt, chain[0].first, family, media), learnt):
            tokens += run.tokens
            supports.append(len(run.tokens) if run.support is None else run.support)
            if run.turn is None:
                logprobs += [0.0] * len(run.tokens)
                text = family.chat.completion_text(run.ids)
                spans.append(Span("tool", len(run.tokens), text, tuple(run.media), fork=fork))
            else:
                logprobs += run.logprobs
                assert run.turn.reply is not None
                calls = run.turn.reply.calls
                spans.append(
                    Span("assistant", len(run.tokens), run.turn.text, (), calls, fork=fork)
                )
            fork = False
    return Completion(
        token_ids=np.array(tokens, dtype=np.int64),
        logprobs=np.array(logprobs, dtype=np.float32),
        support=join_supports(supports),
        text=turns[-1].text,
        truncated=truncated or turns[-1].truncated,
        policy_version=min(turn.version for turn in turns),
        spans=tuple(spans),
        reward=reward,
        failure=failure,
    )


def _behind(prompt: Prompt, first: Prompt, family: ModelFamily, media: MediaCache) -> _Run:
    """The rest of a conversation's first prompt behind the shared one."""
    ids, own = list(first.token_ids[len(prompt.token_ids) :]), first.media[len(prompt.media) :]
    if not ids and not own:
        return _Run(None, [], [])
    shared, whole = (
        family.read_prompt(p, [media[m] for m in p.media]).ids.tolist() for p in (prompt, first)
    )
    if whole[: len(shared)] != shared:
        raise ValueError(_nothing_shared(prompt))
    return _Run(None, ids, whole[len(shared) :], media=list(own))


def _runs(chain: Sequence[Turn], begin: _Run, learnt: set[int]) -> list[_Run]:
    """The runs of a conversation behind the shared prompt, without empty ones.

    Args:
        begin: The rest of its first prompt.
    """
    runs = [begin]
    for turn in chain:
        if turn.parent is not None:
            if turn.cut:
                last = runs[-1]
                del last.ids[-1:], last.tokens[-1:], last.logprobs[-1:]
                if last.support is not None:
                    last.support = select_support(last.support, slice(-1))
            if runs[-1].turn is not None:
                runs.append(_Run(None, [], []))
            runs[-1].ids += turn.bridge.ids
            runs[-1].tokens += turn.since[-1][0]
            runs[-1].media += turn.bridge.media
        if id(turn) in learnt:
            runs[-1].ids += turn.ids
            runs[-1].tokens += turn.ids
        else:
            own = list(turn.ids), list(turn.ids), list(turn.logprobs)
            runs.append(_Run(turn, *own, support=turn.support))
            learnt.add(id(turn))
    return [run for run in runs if run.ids]
