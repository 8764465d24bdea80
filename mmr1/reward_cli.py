"""``mmr1 reward``: score, serve."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from mmr1.config.reward_spec import read_spec
from mmr1.extras import needs_extra
from mmr1.rewards.composite import CompositeReward, build_composite_reward
from mmr1.rewards.http.guard import guard_of, is_loopback
from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.item_rows import (
    batches_of_groups,
    read_rows,
    scored_row,
    to_item,
    with_groups,
)
from mmr1.types import Reward

app = typer.Typer(no_args_is_help=True, help="Verifiable rewards: score and serve them.")

SPEC_HELP = "a name, name:setting=value,..., file.py:function, http://..., or composite.yaml"
_BATCH = 1024
_TOKEN = "MMR1_REWARD_TOKEN"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print a user's mistake as one line, and exit with 2 as all commands do."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"mmr1 reward: {error}", err=True)
        raise typer.Exit(2) from error


@app.command()
def score(
    reward: Annotated[str, typer.Option(help=SPEC_HELP)],
    input: Annotated[Path, typer.Option(help="JSONL rows {completion, answer, ...}")],
    output: Annotated[
        Path | None, typer.Option(help="JSONL rows with reward, status, ...; default: print them")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Verifier processes")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one verdict")] = None,
) -> None:
    """Score a file of completions, in order."""
    with one_line_errors():
        read = list(read_rows(input))
        rows = [row for row, _ in read]
        pairs = zip(with_groups(rows), read, strict=True)
        items = [to_item(grouped, where) for grouped, (_, where) in pairs]
        config = read_spec(reward, workers=workers, timeout_s=timeout)
        start = time.perf_counter()
        with (
            build_composite_reward(config.rewards, config.scoring) as composite_reward,
            _open_output(output) as write,
        ):
            statuses = _score_all(composite_reward, rows, items, write)
        seconds = time.perf_counter() - start
    typer.echo(_summary_line(statuses, seconds, output), err=output is None)


def _score_all(
    composite_reward: CompositeReward,
    rows: list[dict[str, Any]],
    items: list[RewardItem],
    write: Callable[[dict[str, Any]], None],
) -> list[Reward]:
    rewards: dict[int, Reward] = {}
    written = 0
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("scoring", total=len(rows))
        for batch in batches_of_groups(items, _BATCH):
            batch_rewards = composite_reward.score([items[index] for index in batch])
            rewards.update(zip(batch, batch_rewards, strict=True))
            while written in rewards:  # in the order of the rows, which is not that of the groups
                write(scored_row(rows[written], rewards[written]))
                written += 1
            progress.advance(task, len(batch))
    return [rewards[index] for index in range(len(rows))]


@contextmanager
def _open_output(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Write a JSONL file, or print. The file appears under its name only once it is complete.

    Until then it is ``PATH.part``, which stays if the command ends early: verdicts may be dear. A
    lone surrogate, which UTF-8 has not, is written as the escape that JSON has for it.
    """
    if path is None:
        yield lambda row: typer.echo(json.dumps(row))
        return
    partial = path.with_name(f"{path.name}.part")
    with partial.open("w", encoding="utf-8", errors="backslashreplace", buffering=1) as file:
        yield lambda row: print(json.dumps(row, ensure_ascii=False), file=file)
    partial.replace(path)


def _summary_line(rewards: list[Reward], seconds: float, output: Path | None) -> str:
    values = [reward.value for reward in rewards if reward.value is not None]
    mean = f"mean {sum(values) / len(values):.4f}" if values else "no mean"
    counts = Counter(reward.status.value for reward in rewards)
    statuses = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    where = f"; in {output}" if output else ""
    rows = "1 row" if len(rewards) == 1 else f"{len(rewards)} rows"
    rate = f"{seconds:.2f} s, {len(rewards) / seconds:,.0f} rows/s"
    return f"{rows}: {mean}; {statuses or 'none'}{where}\n{rate}"


@app.command()
def serve(
    spec: Annotated[str, typer.Argument(help=SPEC_HELP)],
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on")] = 8000,
    media_root: Annotated[
        Path | None, typer.Option(help="Folder of the pictures that requests may name")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Verifier processes")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one verdict")] = None,
) -> None:
    """Serve a reward over HTTP, in OpenRLHF's protocol.

    Requests must show the token in the environment variable MMR1_REWARD_TOKEN. Where it is not set
    and other machines reach the server, one is made and printed.
    """
    with one_line_errors():
        with needs_extra("serve", "mmr1 reward serve"):
            from mmr1.rewards.http_server import create_app
        from mmr1.serving import http_server, listen

        config = read_spec(spec, workers=workers, timeout_s=timeout)
        if media_root is not None and not media_root.is_dir():
            raise ValueError(f"--media-root {media_root}: no such folder")
        token = os.environ.get(_TOKEN)
        made = secrets.token_urlsafe() if not token and not is_loopback(host) else None
        guard = guard_of(host, token or made)
        with (
            listen(host, port) as listener,
            build_composite_reward(config.rewards, config.scoring) as reward,
        ):
            port = listener.getsockname()[1]
            typer.echo(f"serving {spec} on http://{host}:{port}/get_reward")
            if made is not None:
                typer.echo(f"token of this server, or set {_TOKEN}: {made}")
            with suppress(KeyboardInterrupt):  # the way to end it
                app = create_app(reward, guard=guard, media_root=media_root)
                http_server(app).run(sockets=[listener])


if __name__ == "__main__":
    app()
