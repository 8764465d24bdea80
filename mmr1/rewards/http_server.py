"""``mmr1 reward serve``: any reward over HTTP, in OpenRLHF's protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict

from mmr1.rewards.composite import CompositeReward
from mmr1.rewards.http.guard import Guard
from mmr1.rewards.http.post import read_json
from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.columns import ROW
from mmr1.rewards.plugins.item_rows import to_item, with_groups
from mmr1.serving import read_body
from mmr1.types import Reward

MAX_BODY = 128 << 20  # bytes of one request; a thousand long completions with their tokens fit
MAX_MEDIUM = 32 << 20  # bytes of one picture
MAX_MEDIA = 64  # pictures of one row


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


def create_app(
    composite_reward: CompositeReward,
    *,
    guard: Guard | None = None,
    media_root: Path | None = None,
    max_body: int = MAX_BODY,
) -> FastAPI:
    """An application that answers ``POST /`` and ``POST /get_reward``, and ``GET /health``.

    ``rewards`` and ``scores`` hold a number for each query, or null where there is no valid
    reward; ``status`` and ``error`` say why; ``extra_logs`` holds the
    components.

    A request that is too long is answered by 413. One that is not JSON, nests deeper than 32
    levels, holds a number that is not finite or is not a query is answered by 422.

    Args:
        composite_reward: Reward that scores the queries.
        guard: Check of a request; by default that it asks for this machine by its own name.
        media_root: Folder of the pictures that rows may name; without one they may name none.
        max_body: The longest request, in bytes.
    """
    app = FastAPI(title="mmr1 reward")
    own_guard = guard or Guard()

    def admit(request: Request, *, posts: bool) -> None:
        if refused := own_guard.refusal(request.headers, posts=posts):
            raise HTTPException(*refused)

    @app.get("/health")
    def health(request: Request) -> dict[str, Any]:
        admit(request, posts=False)
        return {"status": "ok", "functions": list(composite_reward.rewards)}

    @app.post("/")
    @app.post("/get_reward")
    async def get_reward(request: Request) -> Response:
        admit(request, posts=True)
        body = await read_body(request, max_body)
        try:
            answer = await run_in_threadpool(_scored, composite_reward, body, media_root)
        except ValueError as error:
            raise HTTPException(422, ascii(str(error))[1:-1]) from error
        # Escaped: a completion may hold half of a surrogate pair, and so an error that names it.
        return Response(json.dumps(answer, allow_nan=False), media_type="application/json")

    return app


def _scored(
    composite_reward: CompositeReward, body: bytes, media_root: Path | None
) -> dict[str, Any]:
    query = Query.model_validate(read_json(body, finite=True))
    return _answer(composite_reward.score(_items(query, media_root)))


def _items(query: Query, media_root: Path | None) -> list[RewardItem]:
    if query.rows is not None:
        confined = [_confined(row, media_root, f"row {n}") for n, row in enumerate(query.rows)]
        return [to_item(row, f"row {n}") for n, row in enumerate(with_groups(confined))]
    lengths = {len(column) for column in (query.query, query.prompts, query.labels) if column}
    if len(lengths) > 1:
        raise ValueError(f"query, prompts and labels are of different lengths: {sorted(lengths)}")
    prompts: Sequence[str | None] = query.prompts or [None] * len(query.query)
    labels = query.labels or [None] * len(query.query)
    rows = [
        {"completion": text.removeprefix(prompt or ""), "prompt": prompt, "answer": label}
        for text, prompt, label in zip(query.query, prompts, labels, strict=True)
    ]
    return [to_item(row, f"{n}") for n, row in enumerate(with_groups(rows))]


_PATHS = ("images", "image_path", "video_path")
"""Columns whose values reward functions open."""


def _confined(row: dict[str, Any], root: Path | None, where: str) -> dict[str, Any]:
    """The row with its media as files below the root.

    Raises:
        ValueError: If a medium is not there or too large, or there are too many.
    """
    confined = dict(row)
    for name in _PATHS:
        if (value := row.get(name)) in (None, [], ""):
            continue
        paths = value if isinstance(value, list) else [value]
        if len(paths) > MAX_MEDIA:
            raise ValueError(f"{where}: '{name}' names {len(paths)} files; {MAX_MEDIA} are allowed")
        files = [str(_file(path, root, f"{where}: '{name}'")) for path in paths]
        confined[name] = files if isinstance(value, list) else files[0]
    if isinstance(own := row.get(ROW), dict):
        confined[ROW] = _confined(own, root, where)
    return confined


def _file(path: Any, root: Path | None, what: str) -> Path:
    if root is None:
        raise ValueError(f"{what} names a file; start the server with --media-root FOLDER")
    if not isinstance(path, str) or "\0" in path:
        raise ValueError(f"{what} is not a path")
    home = root.resolve()
    try:
        file = (home / path).resolve()
        if not file.is_relative_to(home) or not file.is_file():
            raise ValueError(f"{what}: there is no such file below the server's media root")
        size = file.stat().st_size
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{what}: it cannot be opened") from error
    if size > MAX_MEDIUM:
        raise ValueError(f"{what} has {size:,} bytes; {MAX_MEDIUM:,} are allowed")
    return file


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
