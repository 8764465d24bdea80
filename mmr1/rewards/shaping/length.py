"""Rewards of a completion's length and repetition, in tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence


def length_cosine(
    completion: str,
    accuracy: float,
    token_ids: Sequence[int],
    *,
    max_length: int,
    correct: tuple[float, float] = (1.0, 0.5),
    wrong: tuple[float, float] = (-1.0, -0.5),
    correct_above: float = 0.5,
) -> float:
    """A reward that follows a half cosine from length 0 to ``max_length``, and is constant above.

    Right answers are worth less the longer they are, wrong ones cost less (Yeo et al. 2025,
    https://arxiv.org/abs/2502.03373).

    Args:
        completion: The whole completion.
        accuracy: Its accuracy, from the reward function that ``of`` names.
        token_ids: Its tokens.
        max_length: Tokens at which the far end is reached.
        correct: Value of a right answer at length 0 and at ``max_length``.
        wrong: The same of a wrong answer.
        correct_above: An answer is right above this accuracy.

    >>> length_cosine("...", 1.0, range(50), max_length=100)
    0.75
    """
    if max_length <= 0:
        raise ValueError(f"max_length={max_length}: it must be above 0")
    start, end = correct if accuracy > correct_above else wrong
    progress = min(1.0, _length(completion, token_ids) / max_length)
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def length_bonus(
    completion: str,
    accuracy: float,
    group_accuracies: Sequence[float],
    token_ids: Sequence[int],
    *,
    min_length: int,
    max_length: int,
    bonus: float = 0.2,
    correct_above: float = 0.5,
) -> float:
    """``bonus`` for a right answer of ``min_length`` to ``max_length`` tokens; else 0.

    Only in groups with two right answers or more, as in the code of Video-R1, which takes 320 to
    512 tokens (Feng et al. 2025, https://arxiv.org/abs/2503.21776).

    Args:
        completion: The whole completion.
        accuracy: Its accuracy, from the reward function that ``of`` names.
        group_accuracies: Those of its group.
        token_ids: Its tokens.
        min_length: Tokens from which the bonus is paid.
        max_length: Tokens up to which it is paid.
        bonus: The reward of such an answer.
        correct_above: An answer is right above this accuracy.

    >>> length_bonus("...", 1.0, [1.0, 1.0], range(400), min_length=320, max_length=512)
    0.2
    """
    if not 0 < min_length <= max_length:
        raise ValueError(
            f"min_length={min_length}: it must be above 0 and at most max_length={max_length}"
        )
    right = sum(a > correct_above for a in group_accuracies)
    fits = min_length <= _length(completion, token_ids) <= max_length
    return bonus if accuracy > correct_above and right > 1 and fits else 0.0


def overlong(completion: str, token_ids: Sequence[int], *, max_length: int, buffer: int) -> float:
    """DAPO's soft overlong penalty.

    0 up to ``max_length - buffer`` tokens, then linear down to -1 at ``max_length``, and -1 above.

    Yu et al. 2025, https://arxiv.org/abs/2503.14476, equation 13.

    Args:
        completion: The whole completion.
        token_ids: Its tokens.
        max_length: Tokens from which the penalty is -1.
        buffer: Tokens over which it grows.

    >>> overlong("...", range(90), max_length=100, buffer=20)
    -0.5
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer={buffer}: it must be above 0 and at most max_length={max_length}")
    over = _length(completion, token_ids) - (max_length - buffer)
    return -min(1.0, max(0, over) / buffer) or 0.0


def repetition(
    completion: str, token_ids: Sequence[int], *, ngram: int = 4, penalty: float = -1.0
) -> float:
    """``penalty`` times the share of token n-grams that occurred before in the completion.

    Yeo et al. 2025, https://arxiv.org/abs/2502.03373, appendix on the repetition penalty.

    Args:
        completion: The whole completion.
        token_ids: Its tokens.
        ngram: Length of the n-grams; shorter completions repeat nothing.
        penalty: The value of a completion that only repeats, at most 0.

    >>> repetition("...", [1, 2, 1, 2, 1, 2], ngram=2)
    -0.6
    """
    if ngram < 1 or penalty > 0:
        raise ValueError(
            f"ngram={ngram}, penalty={penalty}: ngram is at least 1, penalty at most 0"
        )
    total = _length(completion, token_ids) - ngram + 1
    if total <= 0:
        return 0.0
    distinct = len({tuple(token_ids[i : i + ngram]) for i in range(total)})
    return penalty * (1 - distinct / total) or 0.0


def _length(completion: str, token_ids: Sequence[int]) -> int:
    if completion and not len(token_ids):
        raise ValueError("this reward function counts tokens; give each row 'token_ids'")
    return len(token_ids)
