"""vLLM's settings: derived from the configuration, and reported by an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

import torch
from pydantic import TypeAdapter, ValidationError

from mmr1.config import RolloutConfig, VllmConfig
from mmr1.engines.vllm_arguments import rounds, stages
from mmr1.rollout.vllm_adapters import AdapterShape
from mmr1.rollout.vllm_environment import set_vllm_defaults
from mmr1.rollout.vllm_sleep import preserved_parameters
from mmr1.runtime import keep_freed_memory
from mmr1.vision.families.family import ModelFamily

CPU_KV_CACHE_GIB = 1
"""Of vLLM's CPU backend; the variable ``VLLM_CPU_KVCACHE_SPACE`` wins over it."""
_PREFILL_TOKENS = 4096  # in one step of the engine
_RECURRENT_PROMPTS = 16  # of the longest kind, likewise
_SEQUENCES = 256  # that run at once, though training samples fewer


@dataclass(frozen=True, slots=True)
class Transfer:
    """The way weights come by vLLM's own transfer.

    Attributes:
        same_gpu: Whether weights come from a trainer on the same GPU.
        sleeps: The engine leaves it the GPU by sleeping.
        left_out: Beginnings of the names, in the model's files, of weights that never come: the
            engine keeps what it has read, also while it sleeps.
    """

    same_gpu: bool = False
    sleeps: bool = False
    left_out: tuple[str, ...] = ()


def further_arguments(config: RolloutConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """``rollout.engine.engine_kwargs``: arguments of vLLM that mmr1 does not set.

    Raises:
        ValueError: mmr1 sets one of them here, or it is of another type than vLLM's.
    """
    engine = config.engine
    given = dict(engine.engine_kwargs) if isinstance(engine, VllmConfig) else {}
    if not given:
        return {}
    from vllm.engine.arg_utils import EngineArgs

    types = {field.name: field.type for field in fields(EngineArgs)}
    for name, value in given.items():
        if name in settings:
            raise ValueError(f"rollout.engine.engine_kwargs.{name}: mmr1 sets it; leave it out")
        if _is_plain(types[name]):
            _check_type(name, value, types[name])
    return given


def _is_plain(kind: Any) -> bool:
    """True for numbers, texts, and lists and mappings of them: vLLM reads the others itself."""
    if get_origin(kind) is Literal:
        return True
    inner = get_args(kind)
    known = kind in (bool, int, float, str, type(None), Any, ...) or kind in (list, dict)
    return all(map(_is_plain, inner)) if inner else known


def _check_type(name: str, value: Any, kind: Any) -> None:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        where = f"rollout.engine.engine_kwargs.{name}"
        raise ValueError(f"{where}: {said[0].lower()}{said[1:]} (it is {value!r})") from None


def prepare_environment(deterministic: bool, dtype: str) -> bool:
    """Set vLLM's environment variables; returns True for the CPU backend."""
    on_cpu = not torch.cuda.is_available()
    set_vllm_defaults(on_cpu, dtype)
    if deterministic and not on_cpu:  # its kernels are Triton's
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    if on_cpu:
        keep_freed_memory()
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(CPU_KV_CACHE_GIB))
    return on_cpu


def adapter_settings(adapters: AdapterShape) -> dict[str, Any]:
    """vLLM's arguments for LoRA adapters that are added to the weights of ``model.path``."""
    return {"enable_lora": True, "max_lora_rank": adapters.room, "max_loras": 1}


def transfer_settings(
    model_path: str, transfer: Transfer, trust_remote_code: bool
) -> dict[str, Any]:
    """vLLM's arguments for weights that come by its own transfer; a CPU backend has none."""
    kept = preserved_parameters(model_path, transfer.left_out, trust_remote_code)
    settings: dict[str, Any] = {"sleep_preserve_parameter_names": kept}
    if torch.cuda.is_available():
        settings["weight_transfer_config"] = {"backend": "ipc" if transfer.same_gpu else "nccl"}
        settings["enable_sleep_mode"] = transfer.sleeps
    return settings


def parallel_settings(config: RolloutConfig) -> dict[str, Any]:
    """vLLM's arguments for spreading the model over GPUs.

    vLLM starts the processes itself. Left alone it would take Ray where it finds itself in an
    actor with a placement group, adopt that group, and refuse its bundle of several GPUs.
    """
    size = config.engine.tensor_parallel_size if isinstance(config.engine, VllmConfig) else 1
    return {
        "tensor_parallel_size": size,
        "distributed_executor_backend": "mp" if config.gpus_per_engine > 1 else None,
    }


def gpu_settings(config: RolloutConfig, batch: int) -> dict[str, Any]:
    """Return vLLM's arguments on a GPU, for long prompts and exact log-probs.

    Args:
        batch: The most sequences that training gives the engine at a time.

    vLLM takes no image or video of more tokens than one step of the engine has, and refuses it when
    it comes, in the middle of the run. No medium is longer than the longest prompt. Its own number
    for this GPU, where it is larger, prefills faster. One in ``engine_kwargs`` wins over both.

    The head multiplies into float32: rounded to bfloat16, logits of a large vocabulary alone are a
    gap of 0.01 to 0.03 nats. vLLM keeps a quantized head as it is.

    For each sequence that it may run at once it holds the counts of penalties, four bytes for each
    id of the vocabulary: of vLLM's 1,024 on a large GPU 622 MB, of which a run uses what it samples
    together. An evaluation may have more prompts; at least 256 run at once.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    defaults = EngineArgs.get_batch_defaults(config.gpus_per_engine)
    tokens, sequences = (default[UsageContext.LLM_CLASS] for default in defaults)
    engine, settings = config.engine, dict[str, Any]()
    given = engine.engine_kwargs if isinstance(engine, VllmConfig) else {}
    if (asked := given.get("max_num_batched_tokens")) is None:
        settings["max_num_batched_tokens"] = max(tokens, config.max_model_len)
    elif asked < config.max_model_len:
        raise ValueError(
            f"rollout.engine.engine_kwargs.max_num_batched_tokens={asked}: vLLM takes no medium of "
            f"more tokens; set at least {config.max_model_len}, as long as a prompt with its "
            "response may be, or leave it out"
        )
    if "max_num_seqs" not in given:
        settings["max_num_seqs"] = min(sequences, max(_SEQUENCES, batch))
    if isinstance(engine, VllmConfig) and not rounds(given):
        settings["hf_overrides"] = {"head_dtype": "float32"}
    return settings


def cpu_settings(config: RolloutConfig, family: ModelFamily) -> dict[str, Any]:
    """vLLM's arguments on a CPU.

    Prompts are prefilled in one chunk: of one that is cut, vLLM draws a token too many and winds
    the request's generator back, which generators on the CPU cannot ("CPU Generator does not use
    offset"), and the engine would die. Blocks are the smallest that its attention takes: only full
    ones are shared by a group, and with the backend's 128 a prompt of 121 tokens was computed for
    each of its completions.

    Layers with a state have blocks of their own size, share none, and must be given chunks: one
    that holds many prompts cuts none of them.
    """
    engine = config.engine
    if isinstance(engine, VllmConfig) and stages(engine.engine_kwargs) > 1:
        raise ValueError(
            "rollout.engine.engine_kwargs.pipeline_parallel_size: vLLM's CPU backend does not run "
            "the second stage of a pipeline; set rollout.engine.tensor_parallel_size instead"
        )
    tokens = max(config.max_model_len, _PREFILL_TOKENS)
    if family.recurrent:
        return {
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "enable_chunked_prefill": True,
            "max_num_batched_tokens": _RECURRENT_PROMPTS * tokens,
        }
    return {
        "enforce_eager": True,
        "block_size": 32,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": tokens,
    }


def settings_of(vllm_config: Any) -> str:
    """The settings of an engine on one line, from vLLM's own configuration."""
    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    compilation, attention = vllm_config.compilation_config, vllm_config.attention_config
    eager = vllm_config.model_config.enforce_eager
    graphs = "off" if eager else getattr(compilation.cudagraph_mode, "name", "off").lower()
    backend = getattr(attention.backend, "name", None) or "vLLM's choice"
    values = {
        "CUDA graphs": graphs,
        "chunked prefill": scheduler.enable_chunked_prefill,
        "prefix caching": cache.enable_prefix_caching,
        "key-value cache": cache.cache_dtype,
        "attention": backend,
        "asynchronous scheduling": scheduler.async_scheduling,
        "sequences": scheduler.max_num_seqs,
        "tokens a step": scheduler.max_num_batched_tokens,
    }
    return ", ".join(f"{name} {_word(value)}" for name, value in values.items())


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
