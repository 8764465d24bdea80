"""A server of OpenEnv with a small environment that has pictures. Prints its address."""

from __future__ import annotations

import base64
import socket
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from PIL import Image
from pydantic import Field

from mmr1.environments.pictures import png


class Letters(Action):
    letters: str = Field(pattern="[aeiou]")


class Board(Observation):
    told: str
    board: str | None = None


class Vowels(Environment):
    """Over after three turns with a vowel. The picture has the seed and the number of steps."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int = 0, **kwargs: Any) -> Board:
        if seed < 0:
            raise ValueError("no such board")
        self.seed, self.steps = seed, 0
        return self._board(None)

    def step(self, action: Letters, **kwargs: Any) -> Board:
        self.steps += 1
        return self._board(0.5)

    def _board(self, reward: float | None) -> Board:
        picture = Image.new("RGB", (56, 56), (self.seed, self.steps, 0))
        shown = base64.b64encode(png(picture)).decode()
        told = f"{self.steps} done"
        return Board(told=told, board=shown, reward=reward, done=self.steps == 3)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


if __name__ == "__main__":
    app = create_fastapi_app(Vowels, Letters, Board, max_concurrent_envs=8)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="warning")
        uvicorn.Server(config).run(sockets=[listening])
