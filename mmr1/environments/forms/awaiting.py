"""Coroutines of tools and environments, in a process that has no event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from functools import cache
from typing import Any


def settled(value: Any) -> Any:
    """What a call returned; a coroutine is run to its end.

    All run in one loop, as what an environment keeps may belong to it.
    """
    return _loop().run_until_complete(value) if inspect.iscoroutine(value) else value


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()
