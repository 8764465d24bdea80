"""Environment variables that vLLM, Triton and torch read. Imports no torch."""

from __future__ import annotations

import os

IEEE_PRODUCTS = {
    "TRITON_F32_DEFAULT": "ieee",  # tl.dot, whose default on NVIDIA is tf32 (triton/knobs.py)
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",  # torch's products in vLLM's workers
    "NVIDIA_TF32_OVERRIDE": "0",  # cuBLAS and cuDNN, whose convolutions take TF32 by default
}
"""For float32 engines on GPUs. TF32 has the 10 bits of half precision, and log-probs would differ
from the trainer's by more than ``rollout.parity_tolerance``. vLLM's FlashAttention takes no
float32; its Triton attention, which does, leaves the precision of ``tl.dot`` to Triton's default.
"""


def set_vllm_defaults(on_cpu: bool, dtype: str = "bfloat16") -> None:
    """Environment variables that vLLM and torch read at import, where the user set no others.

    Args:
        dtype: Data type that the engine computes in.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # vLLM would fork its workers: it looks for a CUDA context, which torch.cuda.is_available(),
    # asked long before, does not make. In a fork CUDA cannot be used any more.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if on_cpu:
        # Compiling costs 8-16 s at the first generate and gains nothing at the sizes a CPU runs.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    elif dtype == "float32":
        for name, value in IEEE_PRODUCTS.items():
            os.environ.setdefault(name, value)
