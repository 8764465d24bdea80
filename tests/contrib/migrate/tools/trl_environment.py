"""An environment as it is written for TRL's ``GRPOTrainer(environment_factory=...)``."""

import os

import numpy as np


class NumberEnv:
    """Guess a number, higher or lower."""

    def __init__(self):
        self.reward = 0.0
        self.done = False

    def reset(self, **kwargs) -> str | None:
        self.number = int(kwargs["answer"])
        self.reward = 0.0
        self.done = False
        return f" It is at most {kwargs['limit']}."

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: The guess.

        Returns:
            Whether it is higher or lower.
        """
        if self.done:
            raise ValueError("Game over.")
        self.done = number == self.number
        self.reward = float(self.done)
        if self.done:
            return "right"
        return "higher" if number < self.number else "lower"

    async def give_up(self) -> str:
        """
        Ask for the number.
        """
        self.done, self.reward = True, -1.0
        return str(self.number)

    def crash(self) -> str:
        """
        End the process.
        """
        os._exit(1)

    @staticmethod
    def describe(number: int) -> str:
        """No tool: it has no object.

        Args:
            number: Any.
        """
        return str(number)

    @classmethod
    def rules(cls) -> str:
        """
        Tell the rules.
        """
        return f"{cls.__name__}: higher or lower"

    def _hidden(self) -> str:
        return "no tool"


class Scored(NumberEnv):
    """It owns its reward."""

    def get_reward(self) -> float:
        return 10 * self.reward


def make_environment():
    return Scored()


def make_limited(highest):
    environment = Scored()
    environment.highest = highest
    return environment


class Float32(NumberEnv):
    """Its reward is a number of numpy."""

    def get_reward(self):
        return np.float32(self.reward) / 4


class Varied(NumberEnv):
    """Begins each conversation differently."""

    def reset(self, **kwargs):
        import random

        return str(random.random())


class Breaks(NumberEnv):
    def reset(self, **kwargs):
        raise RuntimeError("no server")
