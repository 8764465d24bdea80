"""Adapters: what is trained, what engines and checkpoints get, what the reference is."""

from __future__ import annotations

import copy

import peft
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForImageTextToText

from mmr1.config import AlgorithmConfig, Config, NewLoraConfig, OptimizerConfig
from mmr1.config.file import load_config
from mmr1.trainer.models.lora import ADAPTER_FOLDER, add_adapters
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.reference import AdapterReference
from mmr1.trainer.models.weights import model_weights
from mmr1.trainer.sft import run_sft
from mmr1.trainer.train import run_training
from tests.trainer.models.adapted import Adapted, logprobs
from tests.trainer.rl_runs import lines, rl
from tests.trainer.same_runs import assert_same


@pytest.mark.parametrize("freeze_vision_tower", [False, True])
def test_only_adapters_are_trained(parts, freeze_vision_tower):
    own = Adapted(parts, freeze_vision_tower, rank=4)
    before = {n: p.clone() for n, p in own.model.named_parameters()}
    for _ in range(2):  # B starts at 0, so the first step moves B alone
        assert own.update()["grad_norm"] > 0
    changed = {n for n, p in own.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n in before if ".lora_" in n}
    assert any("visual" in name for name in changed) != freeze_vision_tower
    assert not any("lm_head" in name for name in changed)


def test_merged_weights_are_the_policy_under_the_plain_names(parts):
    own = Adapted(parts)
    start = own.policy.logprobs(own.groups)
    torch.testing.assert_close(start, logprobs(parts, parts[1]))  # adapters begin as nothing
    own.update()
    moved = own.policy.logprobs(own.groups)
    assert (moved - start).abs().max() > 1e-2
    plain = copy.deepcopy(parts[1])
    weights = own.policy.weights()
    assert weights.keys() == plain.state_dict().keys()
    plain.load_state_dict(weights)
    torch.testing.assert_close(logprobs(parts, plain), moved, atol=1e-5, rtol=0)


def test_the_reference_is_the_policy_without_its_adapters(parts):
    own = Adapted(parts)
    assert isinstance(own.reference, AdapterReference)
    start = own.policy.logprobs(own.groups)
    own.update()
    assert torch.equal(own.reference.logprobs(own.groups), start)
    own.reference.refresh()
    refreshed = own.policy.logprobs(own.groups)
    assert torch.equal(own.reference.logprobs(own.groups), refreshed)
    own.update()
    moved = own.policy.logprobs(own.groups)
    assert torch.equal(own.reference.logprobs(own.groups), refreshed)
    assert torch.equal(own.policy.logprobs(own.groups), moved)  # the adapters are back in place
    assert (moved - refreshed).abs().max() > 1e-2


def test_the_kl_term_holds_on_to_that_reference(parts):
    own = Adapted(parts)
    assert own.update()["kl"] == pytest.approx(0, abs=1e-7)
    assert own.update()["kl"] > 1e-5


def test_dropout_is_for_updates_only(parts):
    own = Adapted(parts, dropout=0.5)
    own.update()
    own.model.train()
    assert torch.equal(own.policy.logprobs(own.groups), own.policy.logprobs(own.groups))


def test_a_checkpoint_loads_without_peft_and_its_adapters_with_it(parts, tmp_path):
    own = Adapted(parts)
    own.update()
    expected = own.policy.logprobs(own.groups)
    own.policy.snapshot()(tmp_path)
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path)
    torch.testing.assert_close(logprobs(parts, plain), expected, atol=1e-5, rtol=0)
    adapted = peft.PeftModel.from_pretrained(copy.deepcopy(parts[1]), tmp_path / ADAPTER_FOLDER)
    torch.testing.assert_close(logprobs(parts, adapted), expected, atol=1e-5, rtol=0)


def test_bfloat16_weights_are_merged_in_the_adapters_precision(parts):
    own = Adapted(parts)
    own.update()
    base = own.model.get_base_model().to(torch.bfloat16)
    for module in base.modules():
        if hasattr(module, "lora_A"):
            module.lora_A.float(), module.lora_B.float()
    layer = base.model.language_model.layers[0].mlp.up_proj
    exact = layer.base_layer.weight.float() + layer.get_delta_weight("default")
    merged = model_weights(own.model)["model.language_model.layers.0.mlp.up_proj.weight"]
    assert torch.equal(merged, exact.bfloat16())


def test_adapters_multiply_in_the_data_type_of_the_model(parts):
    model = copy.deepcopy(parts[1]).to(torch.bfloat16)
    adapted = add_adapters(model, NewLoraConfig(), freeze_vision_tower=True)
    kept = Optimizer(adapted, OptimizerConfig(), 1).tensors()
    assert {t.dtype for name, t in kept.items() if "lora" in name} == {torch.float32}
    language = model.model.language_model
    multiplied = set()

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            if call.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
                multiplied.update(a.dtype for a in args if isinstance(a, torch.Tensor))
            return call(*args, **(kwargs or {}))

    states = torch.randn(1, 8, language.config.hidden_size, dtype=torch.bfloat16)
    with Products():
        out = language(inputs_embeds=states.requires_grad_(), use_cache=False).last_hidden_state
        out.float().sum().backward()
    assert multiplied == {torch.bfloat16}


def test_target_modules_that_do_not_exist_are_refused(parts):
    with pytest.raises(ValueError, match=r"'q_projj'.*down_proj.*q_proj"):
        add_adapters(copy.deepcopy(parts[1]), NewLoraConfig(target_modules=["q_projj"]), False)
    with pytest.raises(ValueError, match="frozen vision tower"):
        add_adapters(copy.deepcopy(parts[1]), NewLoraConfig(target_modules=["qkv"]), True)
    with pytest.raises(ValueError, match=r"lm_head cannot have adapters.*leave it out"):
        load_config(None, ["model.path=a", "model.lora.target_modules=[q_proj, lm_head]"])


@pytest.fixture(scope="module")
def demonstrated(tiny_model, digits, tmp_path_factory):
    """Supervised fine-tuning of adapters, merged into a checkpoint."""
    out = tmp_path_factory.mktemp("lora") / "sft"
    config = load_config(
        None,
        [
            f"model.path={tiny_model}",
            "model.dtype=float32",
            "model.lora.rank=8",
            f"data.train={digits}/sft.jsonl",
            "optimizer.lr=0.01",
            "trainer.max_steps=30",
            f"trainer.output_dir={out}",
            "trainer.logging_steps=1000",
        ],
    )
    return run_sft(config)


def adapted_run(path, digits, out, **rollout):
    """An untrained model earns nothing: an entropy bonus moves the adapters instead."""
    config = rl(path, digits, out, **rollout)
    return config.changed(
        {
            "model.lora": {"rank": 4},
            "algorithm": AlgorithmConfig(kl={"coef": 0.01}, entropy={"coef": 0.1}),
            "optimizer": OptimizerConfig(lr=0.01, scheduler={"warmup_steps": 0}),
            "trainer.validation": None,
        }
    )


def assert_parity_after_updates(out):
    rows = lines(out / "metrics.jsonl")
    before, *after = (row["kl"] for row in rows)
    assert before < 1e-7 < 1e-4 < min(after)  # the policy moved
    for row in rows:
        assert row["rollout/logprob_diff_mean"] < 1e-5


def test_a_whole_run_of_adapters(demonstrated, digits, tmp_path):
    logged = lines(demonstrated.parents[1] / "metrics.jsonl")
    assert logged[-1]["loss"] < 0.75 * logged[0]["loss"]
    checkpoint = run_training(adapted_run(demonstrated, digits, tmp_path / "rl"))
    assert_parity_after_updates(tmp_path / "rl")
    assert (checkpoint / ADAPTER_FOLDER / "adapter_config.json").is_file()


def test_adapters_their_reference_and_a_critic_resume(tiny_model, digits, tmp_path):
    def config(out: str, steps: int) -> Config:
        base = adapted_run(tiny_model, digits, tmp_path / out, max_response_length=6)
        return base.changed(
            {
                "data.train_batch_size": 2,
                "model.lora": {"rank": 4, "dropout": 0.1},
                "algorithm": {
                    "name": "ppo",
                    "advantage": {"critic": {"lr": 1e-3}},
                    "kl": {"coef": 0.01, "reference": {"type": "moving", "sync_steps": 2}},
                    "entropy": {"coef": 0.1},
                },
                "optimizer": {"lr": 1e-2, "scheduler": {"type": "constant", "warmup_steps": 0}},
                "trainer.max_steps": steps,
                "trainer.log_completions_steps": 1,
                "trainer.checkpoints.async_save": True,
            }
        )

    run_training(config("whole", 4))
    run_training(config("parts", 3))
    run_training(config("parts", 4), resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_samples_with_the_merged_weights(demonstrated, digits, tmp_path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    run_training(adapted_run(demonstrated, digits, tmp_path / "rl", engine="vllm"))
    assert_parity_after_updates(tmp_path / "rl")
