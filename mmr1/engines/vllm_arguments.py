"""vLLM's engine arguments: those that another key sets, those that are refused, and the others.

A test compares the three lists with the ``EngineArgs`` of the vLLM that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1.registry import suggest

_SET_BY = {
    "model.path": """model model_weights hf_config_path served_model_name tokenizer tokenizer_mode
        tokenizer_revision revision code_revision hf_overrides""",
    "model.trust_remote_code": "trust_remote_code",
    "model.lora": """enable_lora max_loras max_lora_rank lora_target_modules default_mm_loras
        max_lora_cls_labels""",
    "rollout.engine.dtype": "dtype",
    "rollout.engine.gpu_memory_utilization": "gpu_memory_utilization",
    "rollout.engine.tensor_parallel_size": "tensor_parallel_size distributed_executor_backend",
    "rollout.engine.colocate": "enable_sleep_mode sleep_preserve_parameter_names",
    "rollout.max_prompt_length and rollout.max_response_length": "max_model_len",
    "resources.engines": """data_parallel_size data_parallel_rank data_parallel_start_rank
        data_parallel_size_local data_parallel_address data_parallel_rpc_port
        data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb
        data_parallel_backend elastic_ep_max_dp_size enable_elastic_ep""",
    "the run's own key seed": "seed",
    "the data section, as the trainer prepares the pictures": """mm_processor_kwargs
        mm_device_do_normalize media_io_kwargs video_pruning_rate video_pruning_method""",
    "algorithm.router_replay": "enable_return_routed_experts",
    "mmr1 itself": """logprobs_mode return_sampling_mask disable_log_stats mm_processor_cache_gb
        weight_transfer_config worker_extension_cls device_ids _api_process_count
        _api_process_rank""",
}
OWNED = {name: key for key, names in _SET_BY.items() for name in names.split()}
"""The key that sets each of these arguments."""

_OTHER_DISTRIBUTION = "the log-probs would not be those of the distribution that is sampled from"
_NOT_READ = "mmr1 reads nothing of what it adds"
_REFUSED_BECAUSE = {
    f"it changes what is sampled, and {_OTHER_DISTRIBUTION}": "logits_processors watermark_config",
    "the model's own stop tokens end a completion, and rollout has the sampling parameters": """
        generation_config override_generation_config""",
    "only a model that samples token after token has the log-probs that training needs": """
        runner convert mm_encoder_only pooler_config diffusion_config""",
    "keys, values or features outside vLLM's own caches would outlive their weights": """
        kv_transfer_config ec_transfer_config ec_manager_config kv_offloading_size
        kv_offloading_backend""",
    "an engine's GPUs are tensor_parallel_size times pipeline_parallel_size": """
        prefill_context_parallel_size""",
    "an engine of mmr1 is on one machine; resources.engines has several of them": """
        master_addr master_port nnodes node_rank""",
    "new weights are loaded to where each expert was at the start": "enable_eplb eplb_config",
    "mmr1 sends all requests of a step, and those beyond the limit would fail": """
        max_num_queued_reqs max_num_queued_tokens""",
    "stop strings and the parity check need vLLM's tokenizer": "skip_tokenizer_init tokens_only",
    "vLLM starts its workers without Ray": "ray_workers_use_nsight",
    "mmr1 replaces a lost engine itself (rollout.max_restarts)": """
        enable_fault_tolerance fault_tolerance_config""",
    _NOT_READ: """aux_output_config
        enable_trace_replay enable_prompt_embeds enable_mm_embeds interleave_mm_strings
        io_processor_plugin structured_outputs_config reasoning_parser reasoning_parser_plugin
        reasoning_config kv_events_config profiler_config""",
    "vLLM's statistics are off": """aggregate_engine_logging show_hidden_metrics_for_version
        otlp_traces_endpoint collect_detailed_traces per_request_spec_decode_metrics
        kv_cache_metrics kv_cache_metrics_sample custom_histogram_buckets cudagraph_metrics
        enable_mfu_metrics enable_mm_processor_stats""",
    "mmr1 hands over pictures that are prepared, with their digests": """allowed_local_media_path
        allowed_media_domains mm_processor_cache_type mm_hasher_algorithm
        mm_shm_cache_max_object_size_mb""",
}
REFUSED = {name: why for why, names in _REFUSED_BECAUSE.items() for name in names.split()}
"""The reason why each of these arguments is refused."""

_PASSED = """
    additional_config all2all_backend allow_deprecated_quantization async_scheduling
    attention_backend attention_config block_size compilation_config config_format
    cp_kv_cache_interleave_size cpu_distributed_timeout_seconds cpu_offload_gb
    cpu_offload_params cudagraph_capture_sizes dbo_decode_token_threshold
    dbo_prefill_token_threshold dcp_comm_backend dcp_kv_cache_interleave_size dcp_q_replicate
    decode_context_parallel_size disable_cascade_attn disable_chunked_mm_input
    disable_custom_all_reduce disable_hybrid_kv_cache_manager
    disable_nccl_for_dp_synchronization disable_sliding_window distributed_timeout_seconds
    download_dir dp_sync_interval enable_batch_sharded_sampling enable_chunked_prefill
    enable_cumem_allocator enable_dbo enable_ep_weight_filter enable_expert_parallel
    enable_flashinfer_autotune enable_hc_sp enable_layerwise_nvtx_tracing
    enable_logging_iteration_details enable_mamba_cache_stochastic_rounding
    enable_mamba_shared_prefix_checkpoint enable_mixed_moe_lora_format enable_moe_shared_loras
    enable_nccl_comm_suspend enable_prefix_caching enable_shm_tensor_arena
    enable_tower_connector_lora enforce_eager engram_config expert_placement_strategy
    fail_on_environ_validation fully_sharded_loras gdn_prefill_backend hf_token ignore_patterns
    ir_op_priority jit_monitor_mode jit_monitor_verbose kda_decode_backend kda_prefill_backend
    kernel_config kv_cache_dtype kv_cache_dtype_skip_layers kv_cache_memory_bytes
    kv_sharing_fast_prefill language_model_only limit_mm_per_prompt linear_backend load_format
    log_config_file log_level logging_config long_prefill_token_threshold
    long_prefill_token_threshold_adaptive lora_dtype mamba_backend mamba_block_size
    mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds mamba_config
    mamba_ssm_cache_dtype mamba_ssu_algorithm max_cpu_loras max_cudagraph_capture_size
    max_logprobs max_num_active_seqs max_num_batched_tokens max_num_scheduled_tokens
    max_num_seqs max_parallel_loading_workers mm_encoder_attn_backend mm_encoder_attn_dtype
    mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path
    mm_encoder_tp_mode mm_ipc_gpu_memory_gb mm_processor_device mm_tensor_ipc
    model_class_overrides model_impl model_loader_extra_config moe_backend
    num_gpu_blocks_override numa_bind numa_bind_cpus numa_bind_nodes offload_backend
    offload_group_size offload_num_in_group offload_params offload_prefetch_step
    optimization_level performance_mode pipeline_parallel_size prefill_schedule_interval
    prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit
    pt_load_map_location quantization quantization_config renderer_num_workers
    replayssm_buffer_len safetensors_load_strategy safetensors_prefetch_block_size
    safetensors_prefetch_num_threads scheduler_cls scheduler_reserve_full_isl scheduling_policy
    shutdown_timeout skip_mm_profiling sleep_mode_offload_cudagraph sparse_indexer_topk_backend
    spec_method spec_model spec_tokens specialize_active_lora speculative_config
    stream_interval swa_bounded_replay ubatch_size use_fp64_gumbel use_replayssm
    use_tqdm_on_load watermark worker_cls
"""
PASSED = frozenset(_PASSED.split())
"""The arguments that vLLM gets as they are."""


def speculates(arguments: Mapping[str, Any]) -> bool:
    """True if drafts are verified by the model that samples."""
    return bool(arguments.keys() & {"speculative_config", "spec_method", "spec_model"})


def stages(arguments: Mapping[str, Any]) -> int:
    """The number of pipeline stages. Raises ValueError if it is not one."""
    given = arguments.get("pipeline_parallel_size", 1)
    if type(given) is not int or given < 1:
        raise ValueError(f"pipeline_parallel_size: it is a number of GPUs, not {given!r}")
    return given


def rounds(arguments: Mapping[str, Any]) -> bool:
    """True if weights, or keys and values, have fewer bits than the engine's data type."""
    names = ("quantization", "quantization_config", "kv_cache_dtype", "mm_encoder_attn_dtype")
    return any(arguments.get(name) not in (None, "auto") for name in names)


def problem(arguments: Mapping[str, Any]) -> str | None:
    """Return the fault of these arguments, in one line; None if there is none."""
    for name in arguments:
        if name in OWNED:
            return f"{name}: {OWNED[name]} sets it; leave it out"
        if name in REFUSED:
            return f"{name}: {REFUSED[name]}; leave it out"
        if name not in PASSED:
            return f"{name}: vLLM 0.32 has no such argument{suggest(name, sorted(PASSED))}"
    return _of_speculation(arguments)


def _of_speculation(arguments: Mapping[str, Any]) -> str | None:
    """Return the fault of speculative decoding: the test of drafts must keep the distribution.

    vLLM's ``standard`` and ``block`` tests accept a draft with the probability that leaves the
    model's distribution as it is, whatever proposes the drafts. ``synthetic`` accepts a set share.
    """
    given = arguments.get("speculative_config")
    config: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    method = config.get("method", arguments.get("spec_method"))
    lossy = [name for name in config if name.startswith("synthetic_")]
    if config.get("rejection_sample_method", "standard") not in ("standard", "block"):
        lossy = ["rejection_sample_method"]
    if lossy:
        return (
            f"speculative_config.{lossy[0]}: it accepts drafts without regard to the model's "
            f"probabilities, and {_OTHER_DISTRIBUTION}; leave it out"
        )
    if method == "extract_hidden_states":
        return f"speculative_config.method={method}: {_NOT_READ}; leave it out"
    return None
