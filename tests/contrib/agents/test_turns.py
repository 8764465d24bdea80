"""Which request continues which turn, and what of it is learnt."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmr1.types import Completion, MediaRef, Message, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.agents.chat_messages import chat_messages
from mmr1_contrib.agents.turns import Turns, completion, conversations, shared_prompt

CALLS = (
    '<tool_call>\n{"name": "add",  "arguments": {"b": 1,"a":2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SAMPLE = Sample("1", (Message("user", (TextPart("What is it?"),)),))
ASKED = [{"role": "user", "content": "What is it?"}]


@pytest.fixture(scope="module")
def family(tiny_model):
    return load_family(str(tiny_model))


def odd_ids(family, text: str) -> list[int]:
    """Ids of the text that the tokenizer would not give: words are cut elsewhere."""
    cuts = sorted(random.Random(0).sample(range(1, len(text)), k=len(text) // 3))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [i for piece in pieces for i in family.tokenizer(piece)["input_ids"]]


class Episode:
    """Requests that are answered with given texts."""

    def __init__(self, family):
        self.family = family
        self.turns = Turns(SAMPLE, 0, family, ("<|im_end|>", "<|image_pad|>"))
        self.emitted: list[int] = []

    def ask(self, messages, text, end=True, **body):
        turn = self.turns.open({"messages": messages, **body})
        ids = odd_ids(self.family, text) + ([self.family.stop_ids[0]] if end else [])
        decoded = self.family.chat.completion_text(ids)
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32)
        told = self.turns.take(turn, Completion(np.array(ids), logprobs, decoded, not end, 0))
        self.emitted += turn.ids
        return told.message

    def completion(self) -> Completion:
        firsts = [chain[0] for chain in conversations(self.turns.all)]
        prompt = shared_prompt(self.family.render_prompt(SAMPLE), firsts, self.family)
        media = MediaCache(self.family.prepare_media)
        return completion(self.turns.all, prompt, self.family, media)


def sampled(completion: Completion) -> list[int]:
    ids, start = [], 0
    for span in completion.spans:
        if span.role == "assistant":
            ids += completion.token_ids[start : start + span.tokens].tolist()
        start += span.tokens
    return ids


def rewritten(message):
    """As clients send back what they were told."""
    calls = [
        {
            **call,
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=1),
            },
        }
        for call in message["tool_calls"]
    ]
    content = (message["content"] or "").strip()
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": content}],
        "tool_calls": calls,
    }


@pytest.mark.parametrize("end", [True, False])
def test_what_is_learnt_is_what_was_sampled_however_the_client_writes_it(family, end):
    episode = Episode(family)
    told = episode.ask(ASKED, "<think>hm</think>\n\n I add. \n" + CALLS, tools=TOOLS, end=end)
    first, second = (call["id"] for call in told["tool_calls"])
    answers = [
        {"role": "tool", "tool_call_id": second, "content": "three"},
        {"role": "tool", "tool_call_id": first, "content": [{"type": "text", "text": "two"}]},
    ]
    episode.ask([*ASKED, rewritten(told), *answers], "It is 5.", tools=TOOLS)
    made = episode.completion()
    assert sampled(made) == episode.emitted
    assert made.logprobs[: made.spans[0].tokens].tolist() == [
        -float(n) for n in range(1, made.spans[0].tokens + 1)
    ]
    assert len(made.sequences) == 1
    assert made.spans[1].text.index("two") < made.spans[1].text.index("three")
    again = family.tokenizer.decode(episode.turns.all[0].ids)
    assert family.tokenizer(again)["input_ids"] != episode.turns.all[0].ids


def test_a_stop_string_ends_a_turn_and_is_held(family):
    episode = Episode(family)
    told = episode.ask(ASKED, "<code>\nf(2)\n</code> and a lot more", stop=["</code>"])
    assert told["content"] == "<code>\nf(2)\n"
    written = {"role": "assistant", "content": "<code>\nf(2)\n</code>"}
    for said in (told, written):  # with the tag, as smolagents does, or without
        episode.ask([*ASKED, said, {"role": "user", "content": f"{len(said['content'])}"}], "Yes.")
    chains = conversations(episode.turns.all)
    assert [len(chain) for chain in chains] == [2, 2]
    assert "more" not in episode.completion().spans[0].text
    assert sampled(episode.completion()) == episode.emitted  # the first turn once


SPLIT = [{"type": "text", "text": text} for text in ("<|image_", "pad|><|im_", "end|>")]


@pytest.mark.parametrize("content", ["<|image_pad|><|im_end|>", SPLIT], ids=["whole", "split"])
def test_a_special_token_in_a_message_is_taken_apart(family, content):
    episode = Episode(family)
    episode.ask([{"role": "user", "content": content}], "Yes.")
    prompt = episode.turns.all[0].prompt
    assert family.image_id not in prompt
    assert prompt.count(family.tokenizer.eos_token_id) == 1


def test_a_picture_of_the_record_is_sent_in_its_own_format_and_found_again(family, tmp_path):
    picture = MediaRef("image", tmp_path / "a.jpg", options={"max_pixels": 3136})
    Image.new("RGB", (56, 56), "red").save(picture.path)
    sample = replace(SAMPLE, messages=(Message("user", (picture,)),))
    messages = chat_messages(sample)
    assert messages[0]["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    turn = Turns(sample, 0, family, ()).open({"messages": messages})
    assert turn.media == (picture,)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "messages is a list"),
        ({"messages": [{"role": "critic", "content": ""}]}, "the role 'critic' is unknown"),
        (
            {"messages": [{"role": "assistant", "content": "I"}]},
            "the last message is the assistant",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "'audio' is not read"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}],
                    }
                ]
            },
            "the server fetches nothing",
        ),
    ],
)
def test_a_request_that_cannot_be_read_is_refused(family, body, reason):
    with pytest.raises(ValueError, match=reason):
        Episode(family).turns.open(body)
