"""What is handed over to vLLM, Triton and torch on a machine with a GPU.

Torch is made to say that there is one, and settings are read back where vLLM and Triton read them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from mmr1.config import Config, RolloutConfig
from mmr1.config.file import load_config
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.memory import GIB
from mmr1.rollout.build_vllm import batch_of_engine
from mmr1.rollout.engines import hands_over_gpu_memory
from mmr1.rollout.vllm_core import MANY_SEQUENCES, is_apart
from mmr1.rollout.vllm_environment import IEEE_PRODUCTS
from mmr1.rollout.vllm_settings import prepare_environment
from mmr1.runtime import set_up_torch
from mmr1.start import with_gpus
from mmr1.trainer.distributed.rank_actor import threads_of_rank
from tests.paths import REPOSITORY

SMALL = (
    *("quickstart", "small_calculate", "small_env"),
    *("small_frame", "small_grounding", "small_video"),
)
READ = (
    *IEEE_PRODUCTS,
    *("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "VLLM_WORKER_MULTIPROC_METHOD"),
    *("TORCHDYNAMO_DISABLE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)


@pytest.fixture(autouse=True)
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in READ:  # set, so that it is as before after the test
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(("dtype", "tl_dot"), [("float32", "ieee"), ("bfloat16", None)])
def test_float32_engines_do_not_round_products_to_tf32(dtype, tl_dot):
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    assert not prepare_environment(False, dtype), "it is for a GPU"
    assert triton.knobs.language.fp32_default == tl_dot
    assert os.environ.get("NVIDIA_TF32_OVERRIDE") == ("0" if tl_dot else None)


def test_a_users_own_precision_stays(monkeypatch):
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32x3")
    prepare_environment(False, "float32")
    assert os.environ["TRITON_F32_DEFAULT"] == "tf32x3"


def test_vllm_spawns_its_workers_though_cuda_was_asked_before():
    """vLLM looks for a CUDA context, and asking whether there is a GPU makes none."""
    system_utils = pytest.importorskip("vllm.utils.system_utils", reason="vLLM is not installed")
    assert torch.cuda.is_available()
    assert not torch.cuda.is_initialized()
    prepare_environment(False, "bfloat16")
    assert system_utils.get_mp_context().get_start_method() == "spawn"


@pytest.mark.parametrize(
    ("batch", "limit", "deterministic", "asked", "apart"),
    [
        (MANY_SEQUENCES, 1024, False, None, True),
        (MANY_SEQUENCES - 1, 1024, False, None, False),
        (MANY_SEQUENCES, 256, False, None, False),
        (MANY_SEQUENCES, 1024, True, None, False),
        (MANY_SEQUENCES, 1024, False, "0", False),
        (1, 1024, False, "1", True),
    ],
)
def test_the_core_of_many_sequences_has_its_own_process(
    batch, limit, deterministic, asked, apart, monkeypatch
):
    if asked is not None:
        monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", asked)
    config = RolloutConfig(engine={"engine_kwargs": {"max_num_seqs": limit}})
    assert is_apart(config, batch, deterministic, hands_over_memory=False) == apart


@pytest.mark.parametrize(
    ("sections", "command", "batch"),
    [
        ({}, "train", 65 * 8),
        ({"resources": {"ranks": 1, "engines": 2}}, "train", 33 * 8),
        (
            {
                "rollout": {
                    "n": 8,
                    "max_off_policy_steps": 1,
                    "queue": {"at_new_weights": "continue"},
                }
            },
            "train",
            2 * 65 * 8,
        ),
        ({}, "eval", 1),
    ],
    ids=["one engine", "two engines", "carried over", "no training"],
)
def test_an_engine_is_given_its_share_of_the_rollouts_under_way(sections, command, batch):
    base = {"model": {"path": "m"}, "data": {"train_batch_size": 65}, "rollout": {"n": 8}}
    assert batch_of_engine(Config(**(base | sections)).for_command(command)) == batch


def test_a_core_apart_is_refused_where_it_cannot_be_handed_the_weights(monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with pytest.raises(ValueError, match="VLLM_ENABLE_V1_MULTIPROCESSING is set"):
        is_apart(RolloutConfig(), 1, False, hands_over_memory=True)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch's allocator of GPU memory is told."""
    told: list[Any] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
    return told


def test_the_trainers_convolutions_do_not_round_to_tf32(given, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    set_up_torch(0)
    assert not torch.backends.cudnn.allow_tf32


def test_the_allocator_expands_segments_where_no_memory_is_handed_over(given, monkeypatch):
    set_up_torch(0, expandable_segments=False)
    assert given == []
    set_up_torch(0, expandable_segments=True)
    assert given == ["expandable_segments:True"]
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    set_up_torch(0, expandable_segments=True)
    assert len(given) == 1, "the user has set something else"


@pytest.mark.parametrize(
    ("sections", "handed_over"),
    [
        ({}, True),
        ({"rollout": {"engine": "hf"}}, False),
        ({"rollout": {"engine": {"tensor_parallel_size": 2}}}, False),
        ({"resources": {"ranks": 2}}, False),
        ({"rollout": {"engine": {"colocate": True}}, "resources": {"ranks": 2}}, True),
        ({"model": {"path": "m", "lora": {"merge": False}}}, False),
    ],
    ids=[
        "beside vLLM",
        "transformers",
        "a wide engine",
        "ranks",
        "colocated ranks",
        "adapters alone",
    ],
)
def test_who_hands_gpu_memory_to_an_engine(sections, handed_over):
    config = Config.model_validate({"model": {"path": "m"}, **sections})
    assert hands_over_gpu_memory(config) == handed_over


def test_ranks_whose_optimizer_is_in_main_memory_share_the_cores(monkeypatch):
    monkeypatch.setattr("mmr1.trainer.distributed.rank_actor.cores", lambda: 64)

    def threads(**sections: object) -> int | None:
        return threads_of_rank(Config.model_validate({"model": {"path": "m"}, **sections}), 8)

    assert threads() is None
    assert threads(optimizer={"offload": True}) == 8
    assert threads(optimizer={"offload": True}, trainer={"threads": 3}) == 3


@pytest.mark.parametrize("recipe", SMALL)
def test_small_recipes_take_one_rank_and_one_engine_of_eight_gpus(recipe, monkeypatch):
    monkeypatch.setattr("mmr1.start.gpus_of_this_machine", lambda: Gpus(8, 80 * GIB))
    config = load_config(REPOSITORY / f"scripts/recipes/{recipe}/rl.yaml")
    planned, why = with_gpus(config, resume=False)
    assert why is None
    assert (planned.resources.ranks, planned.engines, planned.distributed) == (1, 1, False)
