"""``mmr1 reward serve``: any reward over HTTP, in OpenRLHF's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict

from mmr1.rewards.composite import CompositeReward
from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.item_rows import to_item
from mmr1.types import Reward


class Query(BaseModel):
    """A batch to score.

    Attributes:
        query: Prompt and completion of each item, as one text.
        prompts: The prompts. A query that begins with its prompt is cut there; the rest is the
            completion.
        labels: The gold answers.
        rows: Rows as ``mmr1 reward score`` reads them, in place of the other three.
    """

    model_config = ConfigDict(extra="allow")

    query: list[str] = []
    prompts: list[str] = []
    labels: list[Any] = []
    rows: list[dict[str, Any]] | None = None


def create_app(composite_reward: CompositeReward) -> FastAPI:
    """An application that answers ``POST /``, ``POST /get_reward`` and ``GET /health``.

    In its answer, ``rewards`` and ``scores`` hold one number per query, or null without a valid
    reward. ``status`` and ``error`` say why. ``extra_logs`` holds the components.
    """
    app = FastAPI(title="mmr1 reward")

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "functions": list(composite_reward.config.functions)}

    @app.post("/")
    @app.post("/get_reward")
    def get_reward(query: Query) -> dict[str, Any]:
        try:
            return _answer(composite_reward.score(_items(query)))
        except ValueError as error:
            raise HTTPException(422, str(error)) from error

    return app


def _items(query: Query) -> list[RewardItem]:
    if query.rows is not None:
        return [to_item(row, f"row {n}") for n, row in enumerate(query.rows)]
    lengths = {len(column) for column in (query.query, query.prompts, query.labels) if column}
    if len(lengths) > 1:
        raise ValueError(f"query, prompts and labels are of different lengths: {sorted(lengths)}")
    prompts = query.prompts or [""] * len(query.query)
    labels = query.labels or [None] * len(query.query)
    return [
        to_item(
            {"completion": text.removeprefix(prompt), "prompt": prompt, "answer": label}, f"{n}"
        )
        for n, (text, prompt, label) in enumerate(zip(query.query, prompts, labels, strict=True))
    ]


def _answer(rewards: Sequence[Reward]) -> dict[str, Any]:
    values = [reward.value for reward in rewards]
    names = dict.fromkeys(name for reward in rewards for name in reward.components)
    return {
        "rewards": values,
        "scores": values,
        "extra_logs": {name: [reward.components.get(name) for reward in rewards] for name in names},
        "status": [reward.status.value for reward in rewards],
        "error": [reward.error for reward in rewards],
    }
