"""vLLM's core, the scheduler and the model's workers: in the engine's process or apart from it.

A core apart steps on while the engine's process reads what it has sampled, and between any two
calls. It is held still while weights change.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import torch

from mmr1.config import RolloutConfig, VllmConfig
from mmr1.lifetime import die_with
from mmr1.runtime import keep_freed_memory

MANY_SEQUENCES = 350
"""From here on the core has its own process.

In one process a sequence costs 23 us of a step (``scripts/bench/host_time.py``). For so many that
is 8 ms, as long as a step of a GPU: asynchronous scheduling can hide no more behind it.
"""
SETTING = "VLLM_ENABLE_V1_MULTIPROCESSING"


def is_apart(
    config: RolloutConfig, batch: int, deterministic: bool, hands_over_memory: bool
) -> bool:
    """True if the core gets its own process; the user's ``VLLM_ENABLE_V1_MULTIPROCESSING`` wins.

    Args:
        batch: The most sequences that the engine is given at a time.
        deterministic: A core apart begins with the first of the requests, before the others have
            come: who runs together would differ from run to run.
        hands_over_memory: Weights come as handles of GPU memory, which vLLM does not pass on.

    Raises:
        ValueError: The user asks for a core apart and memory is handed over.
    """
    if (chosen := os.environ.get(SETTING)) is None:
        stays = deterministic or hands_over_memory or batch < MANY_SEQUENCES
        return not stays and most_sequences(config) >= MANY_SEQUENCES
    if chosen != "0" and hands_over_memory:
        raise ValueError(
            f"{SETTING} is set, and the engine shares its GPU with the trainer: vLLM does not pass "
            "handles of the weights on to another process; unset it"
        )
    return chosen != "0"


def most_sequences(config: RolloutConfig) -> int:
    """The most sequences that vLLM runs together."""
    engine = config.engine
    if isinstance(engine, VllmConfig) and "max_num_seqs" in engine.engine_kwargs:
        return int(engine.engine_kwargs["max_num_seqs"])
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    _, defaults = EngineArgs.get_batch_defaults(config.gpus_per_engine)
    return defaults[UsageContext.LLM_CLASS]


def core_settings(apart: bool, on_cpu: bool, workers: int) -> dict[str, Any]:
    """vLLM's further arguments: on a CPU a core apart would give its model a third process."""
    if not (apart and on_cpu and workers == 1):
        return {}
    return {"distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor"}


@contextmanager
def starts_core(apart: bool) -> Iterator[None]:
    """In the block vLLM starts its core in this process, or in another by ``run_core``."""
    from vllm.v1.engine.core import EngineCoreProc

    own, chosen = EngineCoreProc.__dict__["run_engine_core"], os.environ.get(SETTING)
    EngineCoreProc.run_engine_core = staticmethod(run_core)
    os.environ[SETTING] = str(int(apart))
    try:
        yield
    finally:
        EngineCoreProc.run_engine_core = own
        os.environ.pop(SETTING)
        if chosen is not None:
            os.environ[SETTING] = chosen


def run_core(*args: Any, **options: Any) -> None:
    """The main function of a core's process, which ends with the engine's."""
    from vllm.v1.engine.core import EngineCoreProc

    parent = mp.parent_process()
    assert parent is not None
    assert parent.pid is not None
    die_with(parent.pid)
    if not torch.cuda.is_available():
        keep_freed_memory()
    replace_in_vllm(options["vllm_config"])
    EngineCoreProc.run_engine_core(*args, **options)


def replace_in_vllm(vllm_config: Any) -> None:
    """Replace those functions of vLLM in the core's process that would be wrong here."""
    if not vllm_config.use_v2_model_runner:
        keep_pixels_of_preempted()
    if not torch.cuda.is_available() and vllm_config.speculative_config is not None:
        expand_on_cpu()


class Core:
    """A running core, seen from the engine's process.

    Args:
        client: vLLM's to it.
        apart: It has its own process. If that dies, this one ends too: vLLM would wait for answers
            for ever.
    """

    def __init__(self, client: Any, apart: bool) -> None:
        self._client, self._apart = client, apart
        self._closed = False
        self._held = False
        if apart:
            (process,) = client.resources.engine_manager.processes
            watch = threading.Thread(target=self._end_with, args=(process.sentinel,), daemon=True)
            watch.start()

    def hold(self) -> None:
        """Finish what is under way, label it with its version, and take no further step."""
        if self._apart and not self._held:
            self._client.call_utility("pause_scheduler", "keep", False)
            self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._client.call_utility("resume_scheduler")

    @contextmanager
    def held(self) -> Iterator[None]:
        """No step lies in the block. It may be inside another, whose end releases the core."""
        if self._held:
            yield
            return
        self.hold()
        try:
            yield
        finally:
            self.release()

    @property
    def has_unread(self) -> bool:
        """True if it has sampled what the engine has not read."""
        return self._apart and not self._client.outputs_queue.empty()

    def close(self) -> None:
        if self._apart and not self._closed:
            self._closed = True
            self._client.shutdown(timeout=2)

    def _end_with(self, sentinel: int) -> None:
        wait([sentinel])
        if not self._closed:
            print("the process of vLLM's core has ended", file=sys.stderr, flush=True)
            os._exit(1)


def keep_pixels_of_preempted() -> None:
    """Have vLLM's first model runner keep the pixels of pictures that a cached prefix covers.

    vLLM 0.32 takes them out of what it sends the runner. The second runner is sent a request anew
    when it is resumed after a preemption, the first is not: it would have to encode the picture
    again without its pixels, and the engine would die. The first runner is that of all CPUs.
    """
    from vllm.v1.core.sched import output

    output.strip_covered_mm_data = lambda features, *_, **__: features


def expand_on_cpu() -> None:
    """Give each draft the temperature and top-k of its request, in vLLM's test of drafts on a CPU.

    vLLM 0.32's own kernel writes what is not of 64-bit integers into a copy, and the test would
    divide the logits by whatever is in memory.
    """
    from vllm.v1.sample import rejection_sampler

    def expand(
        values: torch.Tensor,
        ends: torch.Tensor,
        tokens: int,
        replace_from: int = 0,
        replace_to: int = 0,
    ) -> torch.Tensor:
        counts = ends.diff(prepend=ends.new_zeros(1)).long()
        return values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts)

    rejection_sampler.expand_batch_to_tokens = expand
