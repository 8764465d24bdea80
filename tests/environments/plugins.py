"""A parser and environments of a user's own, for the tests."""

import os
import time


def always_zoom(text):
    """Every turn is a call; where it looks depends on what was said."""
    return [{"name": "zoom", "arguments": {"box": [0, 0, 20 + len(text) % 30, 30]}}]


def always_guess(text):
    return [{"name": "guess", "arguments": {"number": 7}}]


def always_a_line(text):
    """Every turn asks for a picture that no model is shown: it is much too narrow."""
    return [{"name": "huge", "arguments": {"width": 4, "height": 4000}}]


class Counter:
    """Says which turn it was."""

    def __init__(self, until):
        self.until = until

    def reset(self, sample):
        self.turns = 0

    def step(self, action):
        self.turns += 1
        return f"turn {self.turns}", self.turns == self.until, 0.5


class BreaksAtReset:
    def reset(self, sample):
        return 1 / 0

    def step(self, action):
        return "", True, None


class BreaksAtStep:
    def reset(self, sample):
        pass

    def step(self, action):
        return "", True, 1 / 0


class DiesAtStep:
    def reset(self, sample):
        pass

    def step(self, action):
        os._exit(1)


class HangsAtStep:
    def reset(self, sample):
        pass

    def step(self, action):
        time.sleep(60)


class OddReward:
    def reset(self, sample):
        pass

    def step(self, action):
        return "", True, "good"


class NanReward:
    def reset(self, sample):
        pass

    def step(self, action):
        return "", True, float("nan")


def reward(completion, messages, tool_calls):
    """What a conversation showed, how long it was and how it ended, in one number."""
    assert messages[-1] == {"role": "assistant", "content": completion}
    for call in tool_calls:
        assert call["name"] == "zoom"
        assert call["error"] is None or call["error"].startswith("not run")
    pictures = sum(len(message.get("images", ())) for message in messages)
    return pictures + 0.1 * len(messages) + 0.01 * len(completion)
