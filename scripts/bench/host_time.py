"""CPU time of vLLM's host work for each sequence and step, its core here and in its own process.

    python scripts/bench/host_time.py

The tiny model, text prompts of one completion, all sequences under way together. Microseconds are
CPU time of threads: of the one that steps the core, apart from the model, and in it the scheduler
(what it schedules, and what it makes of the model's output); of the core's other threads; and of
the engine's process where that is another one. "outputs" are log-probs and tokens, read from what
the core gives. Milliseconds are those of a step on the clock.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common

from mmr1.rollout import vllm_core
from mmr1.rollout.vllm_environment import set_vllm_defaults
from mmr1.vision.families.tiny import new_model

TOKENS = 64


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64, 256])
    args = parser.parse_args()
    set_vllm_defaults(on_cpu=True)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    folder = Path(tempfile.mkdtemp(prefix="mmr1-bench-")) / "model"
    new_model(folder, "tiny")
    vllm_core.run_core = run_timed_core
    # Not the other way round: a core in this process has vLLM read the environment for good.
    rows = [row for apart in (True, False) for row in measured(str(folder), apart, args)]
    common.table(rows)
    common.save(args.output, "host_time", {"rows": rows})


def measured(model: str, apart: bool, args: Any) -> list[dict[str, Any]]:
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    spent: Counter[str] = Counter()
    if not apart:
        time_core(spent)
    with vllm_core.starts_core(apart):
        llm = LLM(
            model,
            dtype="float32",
            gpu_memory_utilization=0.1,
            max_model_len=128,
            max_num_seqs=max(args.sequences),
            block_size=32,
            enforce_eager=True,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            mm_processor_cache_gb=0,
            **vllm_core.core_settings(apart, on_cpu=True, workers=1),
        )
    engine = llm.llm_engine
    core = vllm_core.Core(engine.engine_core, apart)
    _timed(engine.output_processor, "process_outputs", "outputs", spent)
    params = SamplingParams(
        max_tokens=TOKENS, ignore_eos=True, logprobs=0, flat_logprobs=True, seed=0,
        detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    rows = []
    for count in args.sequences:
        least: dict[str, Any] = {}
        for _ in range(args.repeats + 1):
            with core.held():
                for i in range(count):
                    engine.add_request(str(i), {"prompt_token_ids": [20 + i % 200, 21, 22]}, params)
            engine.step()  # prompts
            before, clock, steps = times(engine, spent, apart), time.monotonic(), 0
            while engine.has_unfinished_requests():
                engine.step()
                steps += 1
            clock = time.monotonic() - clock
            taken = times(engine, spent, apart) - before
            row = {name: s / steps / count * 1e6 for name, s in taken.items()}
            row |= {"sequences": count, "ms a step": clock / steps * 1e3}
            least = {name: min(v, least.get(name, v)) for name, v in row.items()}
        order = ["sequences", "scheduler", "stepping", "core's others", "outputs", "engine"]
        names = [*order, "model", "ms a step"]
        rows.append({"core": "apart" if apart else "here", **{n: least.get(n, "") for n in names}})
    core.close()
    return rows


def times(engine: Any, spent: Counter[str], apart: bool) -> Counter[str]:
    """CPU seconds until now; of a core apart also those of its process."""
    if not apart:
        return spent + Counter({"stepping": time.thread_time() - spent["model"]})
    of_core = Counter(engine.engine_core.call_utility("times"))
    return spent + of_core + Counter({"engine": time.process_time()})


def run_timed_core(*args: Any, **options: Any) -> None:
    """The core's main function, which tells how long it has computed."""
    from vllm.v1.engine.core import EngineCoreProc

    spent: Counter[str] = Counter()
    time_core(spent)

    def times(_: Any) -> dict[str, float]:
        here = time.thread_time()
        others = time.process_time() - here
        return {**spent, "stepping": here - spent["model"], "core's others": others}

    EngineCoreProc.times = times
    vllm_core.run_core(*args, **options)


def time_core(spent: Counter[str]) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    for method in ("schedule", "update_from_output"):
        _timed(Scheduler, method, "scheduler", spent)
    for method in ("execute_model", "sample_tokens"):
        _timed(UniProcExecutor, method, "model", spent)


def _timed(owner: Any, method: str, part: str, spent: Counter[str]) -> None:
    """Count the CPU time of a method of an object or a class."""
    own: Callable[..., Any] = getattr(owner, method)

    def timed(*args: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return own(*args, **options)
        finally:
            spent[part] += time.thread_time() - begin

    setattr(owner, method, timed)


if __name__ == "__main__":
    main()
