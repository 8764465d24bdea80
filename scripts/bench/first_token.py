"""Pictures on their way to vLLM's process: bytes through the pipe, and the time to the first token.

    python scripts/bench/first_token.py                # 32 images of 896x896, the tiny model
    python scripts/bench/first_token.py --dtype bfloat16

The images are prepared before the clock starts, as at the beginning of a step in training. It ends
when vLLM has the first token of any completion. Bytes are those that the trainer's process writes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import common
import psutil
import torch
from transformers import AutoModelForImageTextToText

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import PrefetchingEngine
from mmr1.rollout.build_vllm import build_vllm_engine
from mmr1.rollout.engine import Request
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.vllm import VllmEngine
from mmr1.types import Prompt
from mmr1.vision.build import family_of
from mmr1.vision.families.tiny import new_model
from mmr1.vision.prepare import MediaCache

TOKENS = 16


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--pixels", type=int, default=896)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mmr1-bench-"))
    new_model(folder / "model", "tiny")
    config = Config.model_validate(
        {
            "model": {"path": str(folder / "model"), "dtype": "float32"},
            "rollout": {
                "max_prompt_length": 2048 - TOKENS,
                "max_response_length": TOKENS,
                "engine": {"dtype": args.dtype},
            },
            "data": {"image": {"max_pixels": args.pixels**2}},
            "trainer": {"threads": args.threads},
        }
    )
    family = family_of(config)
    media = MediaCache(family.prepare_media)
    prompts = [common.noise_prompt(family, folder, i, args.pixels) for i in range(args.images)]
    pixels = sum(media[m].patches.nbytes for p in prompts for m in p.media)
    tokens = folder / "first"
    process = EngineProcess(
        build_timed, (config, str(tokens)), folder / "engine.log", threads=args.threads
    )
    engine = PrefetchingEngine(process, media)
    row = {"images": args.images, "dtype": args.dtype, "pixels MB": pixels / 1e6}
    model = AutoModelForImageTextToText.from_pretrained(folder / "model", dtype=torch.float32)
    rows = []
    for i in range(args.repeats + 1):
        engine.load_weights(model.state_dict(), i)  # as in training: drops what the engine cached
        rows.append(row | _measure(engine, prompts, args.n, i, tokens))
    engine.close()
    best = min(rows[1:], key=lambda r: r["first token s"])
    common.table([best])
    common.save(args.output, f"first_token_{args.dtype}", {"rows": rows[1:]})


def build_timed(config: Config, tokens: str) -> VllmEngine:
    """The engine; where the file is missing, it notes there when it first has a token."""
    engine = build_vllm_engine(config)
    llm = engine._llm.llm_engine
    step = llm.step

    def noting_step() -> Any:
        outputs = step()
        states = llm.output_processor.request_states.values()
        if not Path(tokens).exists() and any(s.detokenizer.num_output_tokens() for s in states):
            Path(tokens).write_text(str(time.monotonic()))
        return outputs

    llm.step = noting_step
    return engine


def _measure(
    engine: PrefetchingEngine, prompts: list[Prompt], n: int, seed: int, tokens: Path
) -> dict[str, Any]:
    """One step's rollout."""
    requests = [Request(p, n, seed + i) for i, p in enumerate(prompts)]
    tokens.unlink(missing_ok=True)
    written, begin, cpu = (
        psutil.Process().io_counters().write_chars,
        time.monotonic(),
        common.cpu_seconds(),
    )
    engine.generate(requests, SamplingConfig(max_tokens=TOKENS))
    whole = time.monotonic() - begin
    written = psutil.Process().io_counters().write_chars - written
    first = float(tokens.read_text())
    return {
        "written MB": written / 1e6,
        "first token s": first - begin,
        "all s": whole,
        "CPU s": common.cpu_seconds() - cpu,
    }


if __name__ == "__main__":
    main()
