"""The type ``agent`` of the section ``environment``."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from mmr1.section import Coefficient, EnvironmentSection, Need, Positive


class AgentConfig(EnvironmentSection):
    """A program of your own that asks the policy by OpenAI's chat API."""

    needs: ClassVar[tuple[Need, ...]] = (
        *EnvironmentSection.needs,
        Need(
            ("rollout.queue.at_new_weights", "environment.type"),
            lambda c: c.rollout.streams,
            "turns of a program do not say which weights sampled which of their tokens; leave "
            "at_new_weights out: max_off_policy_steps alone samples programs ahead",
            (
                "rollout.max_off_policy_steps=1",
                "rollout.queue.at_new_weights=continue",
                "environment={type: agent, use: 'f.py:g'}",
            ),
        ),
    )

    builder: ClassVar[str] = "mmr1_contrib.agents.engine:agent_engine"
    type: Literal["agent"] = "agent"
    use: str = Field(
        description="file.py:function, run(client, sample): async with openai's AsyncOpenAI, or "
        "not, with OpenAI. It returns a reward, or None where rewards say it all. "
        "gymnasium, openenv, verifiers: an environment of these libraries"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments")
    max_turns: Positive = Field(
        16, description="Requests of one episode; those after them are refused"
    )
    max_tokens_per_turn: Positive = Field(1024, description="Sampled tokens of one request")
    max_images: Positive = Field(8, description="Pictures in one conversation of a program")
    timeout_s: Coefficient = Field(
        60.0,
        description="Seconds that a program may take between its requests, waiting for the policy "
        "not counted; then its process is killed",
    )
    workers: Positive = Field(
        16, description="Programs that run side by side, each in a separate process"
    )

    @property
    def specs(self) -> tuple[str, ...]:
        """The program, by its name."""
        return (self.use,)
