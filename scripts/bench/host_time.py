"""CPU time of vLLM's host work for each sequence and step, apart from the model's forward.

    python scripts/bench/host_time.py

The tiny model, text prompts of one completion, all sequences under way together. Microseconds are
CPU time of the thread that steps the engine: of the scheduler (what it schedules, and what it makes
of the model's output), of the outputs (log-probs), and of all but the model.
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

from mmr1.rollout.vllm_environment import set_vllm_defaults
from mmr1.vision.families.tiny import new_model

TOKENS = 64


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64, 256])
    args = parser.parse_args()
    set_vllm_defaults(on_cpu=True)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    folder = Path(tempfile.mkdtemp(prefix="mmr1-bench-")) / "model"
    new_model(folder, "tiny")
    llm = LLM(
        str(folder),
        dtype="float32",
        gpu_memory_utilization=0.1,
        max_model_len=128,
        max_num_seqs=max(args.sequences),
        block_size=32,
        enforce_eager=True,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        mm_processor_cache_gb=0,
    )
    engine = llm.llm_engine
    spent: Counter[str] = Counter()
    _timed(engine.output_processor, "process_outputs", "outputs", spent)
    core = engine.engine_core.engine_core
    for method in ("schedule", "update_from_output"):
        _timed(core.scheduler, method, "scheduler", spent)
    for method in ("execute_model", "sample_tokens"):
        _timed(core.model_executor, method, "model", spent)
    params = SamplingParams(
        max_tokens=TOKENS, ignore_eos=True, logprobs=0, flat_logprobs=True, seed=0,
        detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    rows = []
    for count in args.sequences:
        least: dict[str, Any] = {}
        for _ in range(args.repeats + 1):
            for i in range(count):
                engine.add_request(str(i), {"prompt_token_ids": [20 + i % 200, 21, 22]}, params)
            engine.step()  # prompts
            spent.clear()
            steps, thread = 0, time.thread_time()
            while engine.has_unfinished_requests():
                engine.step()
                steps += 1
            whole = time.thread_time() - thread
            parts = {"all": whole - spent["model"], **spent}
            row = {name: s / (TOKENS - 1) / count * 1e6 for name, s in sorted(parts.items())}
            row |= {"sequences": count, "steps": steps}
            if not least or row["all"] < least["all"]:
                least = row
        order = ["sequences", "steps", "scheduler", "outputs", "all", "model"]
        rows.append({name: least.get(name, "") for name in order})
    common.table(rows)
    common.save(args.output, "host_time", {"rows": rows})


def _timed(owner: Any, method: str, part: str, spent: Counter[str]) -> None:
    """Count the CPU time of a method of an object."""
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
