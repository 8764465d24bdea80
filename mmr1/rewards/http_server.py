"""``mmr1 reward serve``: any reward over HTTP, in OpenRLHF's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict

from mmr1.rewards.composite import CompositeReward
from mmr1.rewards.http.bounded_json import read_json
from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.item_rows import to_item
from mmr1.types import Reward

MAX_BODY = 128 << 20  # bytes of one request; a thousand long completions with their tokens fit


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


def create_app(composite_reward: CompositeReward, *, max_body: int = MAX_BODY) -> FastAPI:
    """An application that answers ``POST /`` and ``POST /get_reward``, and ``GET /health``.

    ``rewards`` and ``scores`` hold a number for each query, or null where there is no valid
    reward; ``status`` and ``error`` say why; ``extra_logs`` holds the
    components.

    A request that is too long is answered by 413. One that is no JSON, nests deeper than 32
    levels or is no query is answered by 422.

    Args:
        composite_reward: What scores the queries.
        max_body: The longest request, in bytes.
    """
    app = FastAPI(title="mmr1 reward")

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "functions": list(composite_reward.config.functions)}

    @app.post("/")
    @app.post("/get_reward")
    async def get_reward(request: Request) -> dict[str, Any]:
        body = await _body(request, max_body)
        try:
            return await run_in_threadpool(_scored, composite_reward, body)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error

    return app


async def _body(request: Request, limit: int) -> bytes:
    """The request's body. Raises HTTPException 413 when it has more than ``limit`` bytes."""
    too_long = HTTPException(
        413, f"the request is longer than {limit:,} bytes; send fewer items in one request"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_long
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_long
    return bytes(body)


def _scored(composite_reward: CompositeReward, body: bytes) -> dict[str, Any]:
    return _answer(composite_reward.score(_items(Query.model_validate(read_json(body)))))


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
