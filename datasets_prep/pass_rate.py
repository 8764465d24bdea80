"""Pass rates: sample answers from a served model and count the right ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from datasets_prep.server import PARALLEL, Server, in_order, prompt_of
from mmr1.config import Config
from mmr1.data.templates import PromptTemplate, apply_template
from mmr1.rewards import CompositeReward, RewardItem, build_composite_reward
from mmr1.rewards.judges.replies import Reply
from mmr1.types import Sample, Status, TextPart


@dataclass(slots=True)
class PassRates:
    """A served model's mean rewards over the answers to a question.

    Attributes:
        server: Answers the questions.
        count: Answers to each.
        config: Its rewards say what an answer is worth.
        template: Goes around each question, as ``data.prompt_template`` does; None for none.
        replies: The answers so far.
        without_answer: Number of completions in which the reward found no answer.
    """

    server: Server
    count: int
    config: Config
    template: PromptTemplate | None = None
    replies: int = 0
    without_answer: int = 0

    def of(self, samples: Iterable[Sample]) -> Iterator[float]:
        """Each sample's pass rate, in their order. The samples are taken as they are needed.

        Raises:
            ValueError: The server fails, or a sample's reward cannot be computed.
        """
        with build_composite_reward(self.config.rewards, self.config.scoring) as composite_reward:
            answered = in_order(samples, self._ask)
            while batch := list(islice(answered, 2 * PARALLEL)):
                yield from self._graded(composite_reward, batch)

    def _ask(self, sample: Sample) -> list[Reply]:
        asked = apply_template(sample, self.template) if self.template else sample
        return self.server.replies(prompt_of(asked), self.count, sample.id)

    def _graded(
        self,
        composite_reward: CompositeReward,
        batch: Sequence[tuple[Sample, Sequence[Reply]]],
    ) -> list[float]:
        items = [
            RewardItem(completion=reply.text, sample=sample, group=number)
            for number, (sample, replies) in enumerate(batch)
            for reply in replies
        ]
        rates: list[list[float]] = [[] for _ in batch]
        for item, reward in zip(items, composite_reward.score(items), strict=True):
            if reward.value is None:
                raise ValueError(f"{item.sample.id}: no valid reward: {reward.error}")
            rates[item.group].append(reward.value)
            self.replies += 1
            self.without_answer += reward.status is Status.NO_ANSWER
        return [sum(values) / len(values) if values else 0.0 for values in rates]


def without_media(sample: Sample) -> Sample:
    """The sample with the text of its messages alone."""
    messages = (
        replace(message, parts=tuple(p for p in message.parts if isinstance(p, TextPart)))
        for message in sample.messages
    )
    return replace(sample, messages=tuple(messages))
