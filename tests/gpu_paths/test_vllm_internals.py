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

TRANSFER = "distributed/weight_transfer"

# File, class or "", function, and the arguments that are given: positional ones by number.
CALLS = [
    ("entrypoints/llm.py", "LLM", "collective_rpc", 1, ("args",)),
    ("entrypoints/llm.py", "LLM", "reset_prefix_cache", 0, ()),
    ("entrypoints/llm.py", "LLM", "sleep", 0, ("level",)),
    ("entrypoints/llm.py", "LLM", "wake_up", 1, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "add_request", 3, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "abort_request", 1, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "has_unfinished_requests", 0, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "step", 0, ()),
    ("v1/engine/llm_engine.py", "LLMEngine", "reset_encoder_cache", 0, ()),
    ("engine/arg_utils.py", "EngineArgs", "get_batch_defaults", 1, ()),
    ("v1/engine/core_client.py", "SyncMPClient", "call_utility", 3, ()),
    ("v1/engine/core_client.py", "MPClient", "shutdown", 0, ("timeout",)),
    ("v1/engine/core.py", "EngineCoreProc", "run_engine_core", 0, ("vllm_config",)),
    ("v1/engine/core.py", "EngineCoreProc", "pause_scheduler", 2, ()),
    ("v1/engine/core.py", "EngineCore", "resume_scheduler", 0, ()),
    ("renderers/base.py", "BaseRenderer", "render_cmpl", 1, ("skip_mm_cache",)),
    ("inputs/engine.py", "", "tokens_input", 1, ()),
    ("inputs/engine.py", "", "mm_input", 1, ("mm_kwargs", "mm_hashes", "mm_placeholders")),
    ("multimodal/inputs.py", "MultiModalFieldConfig", "batched", 1, ("keep_on_cpu",)),
    ("multimodal/inputs.py", "MultiModalFieldConfig", "flat_from_sizes", 2, ()),
    ("multimodal/inputs.py", "MultiModalKwargsItems", "from_hf_inputs", 2, ()),
    ("entrypoints/rl/offline.py", "RLOfflineMixin", "init_weight_transfer_engine", 1, ()),
    ("entrypoints/rl/offline.py", "RLOfflineMixin", "start_weight_update", 0, ()),
    ("entrypoints/rl/offline.py", "RLOfflineMixin", "update_weights", 1, ()),
    ("entrypoints/rl/offline.py", "RLOfflineMixin", "finish_weight_update", 0, ()),
    (f"{TRANSFER}/factory.py", "WeightTransferEngineFactory", "register_engine", 2, ()),
    (
        f"{TRANSFER}/factory.py",
        "WeightTransferTrainerFactory",
        "trainer_init",
        1,
        ("client", "source"),
    ),
    (f"{TRANSFER}/base.py", "WeightTransferEngine", "parse_update_info", 1, ()),
    (f"{TRANSFER}/nccl_engine.py", "NCCLTrainerWeightTransferEngine", "send_weights", 0, ()),
    (f"{TRANSFER}/nccl_engine.py", "NCCLTrainerWeightTransferEngine", "shutdown", 0, ()),
    (f"{TRANSFER}/ipc_engine.py", "IPCTrainerWeightTransferEngine", "send_weights", 0, ()),
    ("model_executor/model_loader/reload/layerwise.py", "", "initialize_layerwise_reload", 1, ()),
    ("model_executor/model_loader/reload/layerwise.py", "", "finalize_layerwise_reload", 2, ()),
    ("model_executor/model_loader/mtp_validation.py", "", "disable_mtp_completeness_check", 0, ()),
    ("v1/worker/gpu_worker.py", "Worker", "get_model", 0, ()),
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
        "max_num_batched_tokens", "weight_transfer_config", "worker_extension_cls",
        "enable_sleep_mode", "sleep_preserve_parameter_names", "distributed_executor_backend",
    } <= fields("engine/arg_utils.py", "EngineArgs")  # fmt: skip
    assert {
        "n", "seed", "temperature", "top_p", "top_k", "min_p", "stop", "max_tokens",
        "include_stop_str_in_output", "stop_token_ids", "logit_bias", "logprobs", "output_kind",
        "detokenize", "flat_logprobs",
    } <= fields("sampling_params.py", "SamplingParams")  # fmt: skip
    assert {"offset", "length", "is_embed"} <= fields("multimodal/inputs.py", "PlaceholderRange")


def test_where_a_client_keeps_what_its_core_has_sampled():
    """``Core.has_unread`` looks there; its thread ends with the processes of the manager."""
    client = (VLLM / "v1/engine/core_client.py").read_text()
    assert "outputs = self.outputs_queue.get()" in client
    assert "engine_manager: CoreEngineProcManager" in client
    assert "self.processes: list[BaseProcess]" in (VLLM / "v1/engine/utils.py").read_text()


def test_where_the_second_runner_keeps_encoded_media():
    """``encoder_outputs`` in ``mmr1/rollout/vllm.py`` reads it."""
    source = (VLLM / "v1/worker/gpu/mm/encoder_cache.py").read_text()
    assert "self.encoder_outputs: dict[str, torch.Tensor]" in source
    assert "self.encoder_cache" in (VLLM / "v1/worker/gpu/model_runner.py").read_text()


def test_what_the_transfer_of_weights_reads_and_is_read_of():
    """vLLM's sender reads a source and calls a client; ours have what it asks for."""
    from mmr1.rollout.transfer import ParamMeta, SyncClient, WeightSource

    base = f"{TRANSFER}/base.py"
    assert fields(base, "ParamMeta") == set(ParamMeta.__slots__)
    assert methods(base, "VLLMWeightSyncClient") <= set(vars(SyncClient))
    assert {"metadata", "__iter__"} <= methods(base, "WeightSource") & set(vars(WeightSource))
    nccl = f"{TRANSFER}/nccl_engine.py"
    assert {
        "master_address", "master_port", "world_size", "packed", "packed_buffer_size_bytes",
    } <= fields(nccl, "NCCLTrainerInitInfo")  # fmt: skip
    assert {"packed", "packed_buffer_size_bytes"} <= fields(
        f"{TRANSFER}/ipc_engine.py", "IPCTrainerInitInfo"
    )
    assert "rank" in fields(base, "TrainerInitInfo")
    assert "rank_offset" in fields(f"{TRANSFER}/nccl_common.py", "NCCLWeightTransferInitInfo")
    worker = (VLLM / "v1/worker/gpu_worker.py").read_text()
    assert "self._weight_update_active = False" in worker  # abandon_weight_update sets it
    assert "self.weight_transfer_engine" in worker
    # vLLM's sender gives the offset of the first engine, to which the client adds.
    sender = (VLLM / nccl).read_text()
    assert "rank_offset=1" in sender
    assert "engine.client.init_weight_transfer_engine" in sender


def test_what_a_sleeping_engine_has_of_its_memory():
    """``VllmEngine.wake_up`` gives vLLM's tags, one at a time, and asks whether all are awake."""
    worker = (VLLM / "v1/worker/gpu_worker.py").read_text()
    for tag in ("weights", "kv_cache"):
        assert f'tag="{tag}"' in worker
    # At level 2 it preserves buffers by itself, and of the parameters those that it is told to.
    saved = worker[worker.index("def sleep(") : worker.index("def wake_up(")]
    assert "if level == 2:" in saved
    assert "self._save_sleep_parameters(model)" in saved
    assert "in model.named_buffers()" in saved
    core = (VLLM / "v1/engine/core.py").read_text()
    assert "fully_awake = not self.model_executor.is_sleeping" in core


def test_where_the_second_runner_keeps_what_level_2_forgets():
    """``blank_scratch`` finds its tensors there. They lie among the weights and are not buffers."""
    assert "self.positions = torch.zeros(" in (VLLM / "v1/worker/gpu/mm/rope.py").read_text()
    encoder = (VLLM / "v1/worker/gpu/mm/encoder_runner.py").read_text()
    assert "self.inputs_embeds = torch.zeros(" in encoder
    state = (VLLM / "v1/worker/gpu/model_states/default.py").read_text()
    assert "self.rope_state = get_rope_state(" in state
    interface = (VLLM / "v1/worker/gpu/model_states/interface.py").read_text()
    assert "self.encoder_runner = EncoderRunner(" in interface
    runner = (VLLM / "v1/worker/gpu/model_runner.py").read_text()
    load = runner[runner.index("def load_model(") : runner.index("def get_model(")]
    assert "self.model_state = init_model_state(" in load


def test_float32_goes_to_triton_whose_products_have_the_precision_of_its_default():
    flash = (VLLM / "v1/attention/backends/flash_attn.py").read_text()
    assert "[torch.float16, torch.bfloat16]" in flash
    assert "torch.float32," in (VLLM / "v1/attention/backends/triton_attn.py").read_text()
    kernel = (VLLM / "v1/attention/ops/triton_unified_attention.py").read_text()
    assert "tl.dot(Q, K)" in kernel, "no precision of its own"


def methods(file: str, name: str) -> set[str]:
    return {n.name for n in of_class(file, name) if isinstance(n, ast.FunctionDef)}
