"""An environment: ``environment: {type: scripts/examples/environment.py:Guess}``."""

from __future__ import annotations


class Guess:
    """Says whether the number is larger or smaller, and gives 1 for the right one."""

    def reset(self, sample) -> None:
        self.number = int(sample.answer)

    def step(self, action: str) -> tuple[str, bool, float]:
        try:
            guess = int(action)
        except ValueError:
            return "Write a number.", False, 0.0
        if guess == self.number:
            return "", True, 1.0
        return ("larger" if guess < self.number else "smaller"), False, 0.0
