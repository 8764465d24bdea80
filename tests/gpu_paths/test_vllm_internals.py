"""What ``mmr1/rollout/vllm.py`` calls of vLLM, GPU runners included, is in the installed version.

Read from vLLM's source: its GPU modules need not be importable, and importing the rest takes
longer than all of these tests.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest

spec = importlib.util.find_spec("vllm")
if spec is None or spec.origin is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)
VLLM = Path(spec.origin).parent

# File, class or "", function, and the arguments that are given: positional ones by number.
CALLS = [
    ("entrypoints/llm.py", "LLM", "collective_rpc", 1, ("args",)),
    ("entrypoints/llm.py", "LLM", "reset_prefix_cache", 0, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "add_request", 3, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "abort_request", 1, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "has_unfinished_requests", 0, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "step", 0, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "reset_encoder_cache", 0, ()),
    ("renderers/base.py", "BaseRenderer", "render_cmpl", 1, ("skip_mm_cache",)),
    ("inputs/engine.py", "", "tokens_input", 1, ()),
    ("inputs/engine.py", "", "mm_input", 1, ("mm_kwargs", "mm_hashes", "mm_placeholders")),
    ("multimodal/inputs.py", "MultiModalFieldConfig", "batched", 1, ("keep_on_cpu",)),
    ("multimodal/inputs.py", "MultiModalFieldConfig", "flat_from_sizes", 2, ()),
    ("multimodal/inputs.py", "MultiModalKwargsItems", "from_hf_inputs", 2, ()),
    ("v1/worker/gpu_worker.py", "Worker", "reload_weights", 0, ("weights_iterator",)),
    ("v1/worker/gpu_model_runner.py", "GPUModelRunner", "reload_weights", 0, ("weights_iterator",)),
    ("v1/worker/gpu/model_runner.py", "GPUModelRunner", "reload_weights", 0, ("weights_iterator",)),
]


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((VLLM / file).read_text())


def of_class(file: str, name: str) -> list[ast.stmt]:
    found = [n for n in tree(file).body if isinstance(n, ast.ClassDef) and n.name == name]
    assert found, f"{file} has no class {name}"
    return found[0].body


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]}:{call[1]}.{call[2]}")
def test_a_call(call):
    file, owner, function, positional, names = call
    body = of_class(file, owner) if owner else tree(file).body
    found = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == function]
    assert found, f"{file} has no {owner}.{function}"
    definition = found[-1]  # overloads come before it
    arguments = definition.args
    places = [*arguments.posonlyargs, *arguments.args]
    static = any(getattr(d, "id", "") == "staticmethod" for d in definition.decorator_list)
    bound = 1 if owner and not static else 0
    assert arguments.vararg or len(places) >= bound + positional
    known = {a.arg for a in [*places[bound + positional :], *arguments.kwonlyargs]}
    assert arguments.kwarg or set(names) <= known, known
    if not arguments.vararg:
        given = bound + positional
        required = places[: len(places) - len(arguments.defaults)]
        assert {a.arg for a in required[given:]} <= set(names), "an argument is not given"


def fields(file: str, name: str) -> set[str]:
    body = of_class(file, name)
    return {n.target.id for n in body if isinstance(n, ast.AnnAssign) and hasattr(n.target, "id")}


def test_settings_of_the_engine_and_of_sampling():
    assert {
        "model", "dtype", "seed", "max_model_len", "logprobs_mode", "gpu_memory_utilization",
        "tensor_parallel_size", "disable_log_stats", "mm_device_do_normalize",
        "mm_processor_cache_gb", "enforce_eager", "block_size", "enable_chunked_prefill",
        "max_num_batched_tokens",
    } <= fields("engine/arg_utils.py", "EngineArgs")  # fmt: skip
    assert {
        "n", "seed", "temperature", "top_p", "top_k", "min_p", "stop", "max_tokens",
        "include_stop_str_in_output", "stop_token_ids", "logit_bias", "logprobs", "output_kind",
        "detokenize",
    } <= fields("sampling_params.py", "SamplingParams")  # fmt: skip
    assert {"offset", "length", "is_embed"} <= fields("multimodal/inputs.py", "PlaceholderRange")


def test_where_the_second_runner_keeps_encoded_media():
    """``encoder_outputs`` in ``mmr1/rollout/vllm.py`` reads it."""
    source = (VLLM / "v1/worker/gpu/mm/encoder_cache.py").read_text()
    assert "self.encoder_outputs: dict[str, torch.Tensor]" in source
    assert "self.encoder_cache" in (VLLM / "v1/worker/gpu/model_runner.py").read_text()
