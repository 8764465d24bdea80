"""A taskset of ``verifiers``: the longer the answer, the better."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["Letters"]


class Task(vf.Task[vf.TaskData]):
    @vf.reward
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Letters(vf.Taskset[Task, vf.TasksetConfig]):
    def load(self) -> Iterator[Task]:
        for n in range(3):
            data = vf.TaskData(prompt=f"Write {n} letters.")
            yield Task(data, self.config.task)
