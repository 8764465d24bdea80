"""Agent programs: functions of the user that talk to the policy by OpenAI's API.

Each episode runs in a separate process, which has what this one has: a program brings its own
clients, and can still be killed. ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` lead it to the policy.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import httpx

from mmr1.environments.worker import as_number
from mmr1.environments.workers import ToolWorkers
from mmr1.registry import Registry
from mmr1.rewards.item import Job
from mmr1.types import Sample
from mmr1_contrib.agents.sections import AgentConfig

PROGRAMS = Registry(
    "agent program",
    {
        "gymnasium": "mmr1_contrib.agents.gym_program:run",
        "openenv": "mmr1_contrib.agents.openenv_program:run",
        "verifiers": "mmr1_contrib.agents.verifiers_program:run",
    },
    group="mmr1.agents",
)
_PACKAGES = {"gymnasium": "gymnasium", "openenv": "websockets", "verifiers": "verifiers"}
"""What the environments of other libraries need."""
_MODULE = "mmr1_contrib.agents.programs"


def program_workers(config: AgentConfig) -> ToolWorkers:
    """Processes for programs, started.

    Raises:
        ValueError: The program cannot be loaded, or the package openai is not installed.
    """
    warm = Job(f"{_MODULE}:warm_up", ())
    prepare = Job(f"{_MODULE}:check", (config.use, config.options))
    limits = (config.workers, config.timeout_s)
    workers = ToolWorkers(*limits, warm=warm, prepare=prepare, walls=False)
    workers.start()
    return workers


def warm_up() -> None:
    """Import the package openai, in the zygote.

    Raises:
        ValueError: The package openai is not installed.
    """
    try:
        importlib.import_module("openai")
    except ImportError as error:
        raise ValueError(
            "environment.type=agent gives its program a client of the package openai, which is "
            "not installed; install 'mmr1[agents]'"
        ) from error


def check(spec: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError unless it is a function of a client, a sample and these options.

    Its package must be installed too.
    """
    package = _PACKAGES.get(spec)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ValueError(
            f"environment.use={spec} needs the package {package}, which is not installed; "
            f"pip install {package}"
        )
    program = PROGRAMS.load(spec)
    if not callable(program):
        raise ValueError(f"environment.use={spec} is a {type(program).__name__}, not a function")
    try:
        inspect.signature(program).bind("client", "sample", **options)
    except TypeError as error:
        raise ValueError(
            f"environment.use={spec} is not run(client, sample) with environment.options: {error}"
        ) from error


def run(
    spec: str, options: Mapping[str, Any], sample: Sample, base_url: str, key: str
) -> float | None:
    """Run a program; its reward, or None.

    Raises:
        Exception: Whatever it raises.
    """
    os.environ.update(OPENAI_BASE_URL=base_url, OPENAI_API_KEY=key)
    program = PROGRAMS.load(spec)
    if inspect.iscoroutinefunction(program):
        return as_number(asyncio.run(_run(program, options, sample)), "the program")
    from openai import DefaultHttpxClient, OpenAI

    with OpenAI(timeout=None, http_client=DefaultHttpxClient(verify=_certificates())) as client:
        return as_number(program(client, sample, **options), "the program")


async def _run(program: Callable[..., Any], options: Mapping[str, Any], sample: Sample) -> Any:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    http_client = DefaultAsyncHttpxClient(verify=_certificates())
    async with AsyncOpenAI(timeout=None, http_client=http_client) as client:
        return await program(client, sample, **options)


@cache
def _certificates() -> ssl.SSLContext:
    """Read once in each process: a client alone would read them in 30 ms for each episode."""
    return httpx.create_ssl_context()
