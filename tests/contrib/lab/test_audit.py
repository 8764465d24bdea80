"""The audit: sound steps of every kind are equal, and a planted fault is named where it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import mmr1.algorithms.baselines as baselines
import mmr1.algorithms.ratios as ratios
import mmr1.data.rendering as rendering
import mmr1.rollout.hf as hf
import mmr1.trainer.algorithm as algorithm
import mmr1.trainer.models.optimizer as optimizer
import mmr1.trainer.sampling.experience as experience
import mmr1.trainer.sampling.parity as parity
import mmr1.vision.features as features
import mmr1.vision.images as images
from mmr1.rewards.composite import CompositeReward
from mmr1.rollout.distribution import Distribution, kept_ids
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.reference import FrozenReference
from mmr1_contrib.lab.audit import formulas
from mmr1_contrib.lab.audit.recipe import Recipe, read_recipe
from mmr1_contrib.lab.audit.step_file import AuditError, read_step_file

SOUND = {
    "grpo": (),
    "dr_grpo": ("algorithm=dr_grpo",),
    "rloo_passes": ("algorithm=rloo", "algorithm.ppo_epochs=2"),
    "gspo": ("algorithm=gspo",),
    "reinforce_pp_penalty": ("algorithm=reinforce_pp", "algorithm.kl.type=reward"),
    "lora": ("model.lora.rank=4",),
    "top_p": ("rollout.top_p=0.6", "rollout.temperature=0.8"),
}
SLOW = {
    "dapo": ("algorithm=dapo",),
    "cispo": ("algorithm=cispo",),
    "sapo": ("algorithm=sapo",),
    "clip_cov": ("algorithm=clip_cov",),
    "kl_cov": ("algorithm=kl_cov",),
    "gpg": ("algorithm=gpg",),
    "reinforce": ("algorithm=reinforce",),
    "remax": ("algorithm=remax",),
    "reinforce_pp_baseline": ("algorithm=reinforce_pp_baseline",),
    "ppo": ("algorithm=ppo", "algorithm.kl.type=reward"),
    "kl_full": ("algorithm.kl={{type: full, coef: 0.1}}", "algorithm.ppo_epochs=2"),
    "entropy": ("algorithm.entropy.coef=0.01", "algorithm.loss.top_entropy_quantile=0.3"),
    "truncated": ("algorithm.mask_truncated_completions=true", "algorithm.loss.agg_scope=rollout"),
    "gdpo": ("algorithm.advantage=gdpo",),
    "optimal_baseline": ("algorithm.advantage=optimal_baseline",),
    "pass_at_k": ("algorithm.advantage=pass_at_k",),
    "sequence_ppo": ("algorithm.loss=sequence_ppo",),
    "reinforce_weighted": ("algorithm.loss=reinforce", "algorithm.loss.importance=token"),
    "process_grpo": (
        "algorithm=process_grpo",
        "algorithm.advantage.step_rewards={here}/steps.py:steps",
    ),
    "distillation": (
        "algorithm=on_policy_distillation",
        "algorithm.kl=null",
        "algorithm.advantage.teacher={{type: model, path: {here}/teacher}}",
    ),
    "bfloat16": ("model.dtype=bfloat16",),
    "top_k": ("rollout.top_k=6", "rollout.min_p=0.01"),
    "min_p_kl_full": ("rollout.min_p=0.3", "algorithm.kl={type: full, coef: 0.1}"),
    "top_p_bfloat16": ("rollout.top_p=0.7", "model.dtype=bfloat16"),
    "cosine": ("optimizer.scheduler.type=cosine", "optimizer.scheduler.warmup_steps=0.3"),
}


def audited(mmr1: Callable[..., tuple[int, str, str]], *arguments: object) -> tuple[int, str]:
    """The exit code and the output of ``mmr1 audit``."""
    code, out, error = mmr1("audit", *arguments)
    return code, out + error


@pytest.mark.parametrize(
    "name", [*SOUND, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_audit_of_sound_step_finds_nothing(recorded, mmr1, name: str) -> None:
    run = recorded(*{**SOUND, **SLOW}[name])
    code, out = audited(mmr1, run)
    assert code == 0, out
    assert "the step is what its configuration says" in out


def test_audit_continues_from_checkpoint(recorded, mmr1) -> None:
    run = recorded("trainer.max_steps=3", "trainer.checkpoints.save_steps=2")
    code, out = audited(mmr1, run, "--step", 3)
    assert code == 0, out


def test_audit_of_adapters_after_checkpoint(recorded, mmr1) -> None:
    keys = ("trainer.max_steps=2", "trainer.checkpoints.save_steps=1", "model.lora.rank=4")
    code, out = audited(mmr1, recorded(*keys), "--step", 2)
    assert code == 0, out
    assert "param/delta_norm (2) equal" in out


def test_audit_of_videos_and_texts(recorded, mmr1, mixed: Path) -> None:
    run = recorded(f"data.train={mixed}", "rollout.max_response_length=16")
    code, out = audited(mmr1, run)
    assert code == 0, out


# Planted faults: each changes one thing in the running trainer, as a bug would. ------------------


def everywhere(patch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Replace a function in every module that has imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mmr1."):
            for key, value in list(vars(module).items()):
                if value is old:
                    patch.setattr(module, key, new)


def mask_without(patch: pytest.MonkeyPatch, first: bool) -> None:
    whole = experience.completion_mask

    def shorter(groups: Any) -> torch.Tensor:
        mask = whole(groups).clone()
        for row, length in enumerate(mask.sum(1).tolist()):
            mask[row, 0 if first else length - 1] = False
        return mask

    patch.setattr(experience, "completion_mask", shorter)


def with_advantages(patch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], Any]) -> None:
    sound = experience.run_on_sampled_tokens
    patch.setattr(experience, "run_on_sampled_tokens", lambda f, x, m: change(sound(f, x, m)))


def biased_deviation(rewards: torch.Tensor, valid: torch.Tensor, eps: float = 1e-6) -> Any:
    centred = baselines.dr_grpo(rewards, valid)
    return centred / (rewards.std(-1, keepdim=True, correction=0) + eps)


def exchanged_channels(patch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    load = images.load_image

    def bgr(*arguments: Any) -> Any:
        r, g, b = load(*arguments).convert("RGB").split()
        return Image.merge("RGB", (b, g, r))

    everywhere(patch, load, bgr)


def without_decay(patch: pytest.MonkeyPatch) -> None:
    groups = optimizer._groups
    patch.setattr(
        optimizer, "_groups", lambda *a: [{**group, "weight_decay": 0.0} for group in groups(*a)]
    )


def kl_sign(patch: pytest.MonkeyPatch) -> None:
    loss = algorithm.Algorithm.loss
    patch.setattr(
        algorithm.Algorithm,
        "loss",
        lambda self, x, c=1.0: loss(self, replace(x, kl_coef=-x.kl_coef), c),
    )


def frozen_tower(patch: pytest.MonkeyPatch) -> None:
    accumulate = LocalPolicy._accumulate

    def without_tower(self: LocalPolicy, *arguments: Any) -> Any:
        stats = accumulate(self, *arguments)
        for name, parameter in self._packed_model.model.named_parameters():
            if "visual" in name:
                parameter.grad = None
        return stats

    patch.setattr(LocalPolicy, "_accumulate", without_tower)


def blind(patch: pytest.MonkeyPatch) -> None:
    encode = features.encode_media
    patch.setattr(parity, "check_sight", lambda *a: 1.0)  # which would stop the run
    everywhere(patch, encode, lambda *arguments: encode(*arguments) * 0)


def blind_engine(patch: pytest.MonkeyPatch) -> None:
    encode = features.encode_media
    patch.setattr(hf, "encode_media", lambda *arguments: encode(*arguments) * 0)
    patch.setattr("mmr1.trainer.train.check_parity", lambda *a: _Agreement())


class _Agreement:
    prompts, mean_gap, max_gap, sight = 1, 0.0, 0.0, 1.0


def unclipped_gradient(patch: pytest.MonkeyPatch) -> None:
    clip = torch.nn.utils.clip_grad_norm_
    patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda p, norm, **k: clip(p, 1e9))


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "first_token": (
        lambda patch: mask_without(patch, True),
        "token/mask",
        "the first token of each completion is left out",
    ),
    "shifted_advantage": (
        lambda patch: with_advantages(patch, lambda a: a + 0.5),
        "token/advantage",
        "a constant +0.5",
    ),
    "blind": (blind, "token/rollout_logp", "the model does not see the image"),
    "kl_sign": (kl_sign, "update/loss", "the sign of the KL term"),
    "halved_gradient": (
        lambda patch: scaled_gradient(patch, 0.5),
        "param/grad_norm",
        "every gradient times 0.500",
    ),
    "decay": (without_decay, "param/delta_norm", "no weight decay"),
}
SLOW_FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "last_token": (
        lambda patch: mask_without(patch, False),
        "token/mask",
        "the last token of each completion is left out",
    ),
    "neighbour": (
        lambda patch: with_advantages(patch, lambda a: a.roll(1, 0)),
        "token/advantage",
        "",
    ),
    "scaled_advantage": (
        lambda patch: with_advantages(patch, lambda a: a * 1.01),
        "token/advantage",
        "every advantage times 1.01",
    ),
    "biased_deviation": (
        lambda patch: everywhere(patch, baselines.grpo, biased_deviation),
        "token/advantage",
        "the deviation of the population",
    ),
    "normaliser": (
        lambda patch: patch.setattr(
            experience,
            "token_weights",
            lambda mask, mode, limit=None: ratios.token_weights(mask, "token-sum", limit),
        ),
        "token/weight",
        "agg_mode token-sum",
    ),
    "normaliser_scope": (
        lambda patch: patch.setattr(
            experience,
            "_loss_weights",
            lambda mask, parts, a, limit: ratios.token_weights(mask, a.loss_agg_mode, limit),
        ),
        "token/weight",
        "over the whole rollout",
    ),
    "channels": (exchanged_channels, "media/patch_mean", "the channels in the order (2, 1, 0)"),
    "blind_engine": (blind_engine, "token/rollout_logp", "the model does not see the image"),
    "tower": (frozen_tower, "param/grad_norm", "parameters have none"),
    "warmup": (
        lambda patch: patch.setattr(optimizer, "schedule_factor", lambda *a: 1.0),
        "update/lr",
        "no warm-up",
    ),
    "gradient_clip": (unclipped_gradient, "param/delta_norm", "no clip of the gradient"),
}


# Faults of the second sitting. At first sight 17 of the 19 were named at the quantity expected.


def agreeing(patch: pytest.MonkeyPatch) -> None:
    """Let the start check pass, which would stop such a run."""
    patch.setattr("mmr1.trainer.train.check_parity", lambda *a: _Agreement())


def scaled(patch: pytest.MonkeyPatch, owner: Any, name: str, factor: float) -> None:
    """Multiply what a method returns."""
    method = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *a, **k: method(self, *a, **k) * factor)


def rendered(patch: pytest.MonkeyPatch, change: Callable[[Any, Any], Any]) -> None:
    """Change what is rendered; ``change`` gets the sound function and a sample."""
    agreeing(patch)
    sound = rendering.renderer

    def faulty(family: Any, config: Any) -> Any:
        render = sound(family, config)
        return lambda sample: change(render, sample)

    everywhere(patch, sound, faulty)


def without_pictures(render: Any, sample: Any) -> Any:
    messages = tuple(
        replace(m, parts=tuple(part for part in m.parts if hasattr(part, "text")))
        for m in sample.messages
    )
    return render(replace(sample, messages=messages))


def shown(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    load = images.load_image
    everywhere(patch, load, lambda *a: change(load(*a)))


def halved(image: Any) -> Any:
    width, height = image.size
    return image.resize((width // 2, height // 2)).resize((width, height))


def dearer_rewards(patch: pytest.MonkeyPatch) -> None:
    score = CompositeReward.score

    def dearer(self: Any, items: Any) -> Any:
        return [replace(r, value=r.value and r.value * 1.01) for r in score(self, items)]

    patch.setattr(CompositeReward, "score", dearer)


def mask_of_ended(patch: pytest.MonkeyPatch) -> None:
    whole = experience.completion_mask

    def ended(groups: Any) -> torch.Tensor:
        cut = torch.tensor([c.truncated for g in groups for c in g.completions])
        return whole(groups) & ~cut[:, None]

    patch.setattr(experience, "completion_mask", ended)


def hotter_engine(patch: pytest.MonkeyPatch) -> None:
    agreeing(patch)
    generate = hf.HfEngine.generate

    def hotter(self: Any, requests: Any, sampling: Any) -> Any:
        return [
            replace(
                group,
                completions=tuple(
                    replace(c, logprobs=c.logprobs * 1.01) for c in group.completions
                ),
            )
            for group in generate(self, requests, sampling)
        ]

    patch.setattr(hf.HfEngine, "generate", hotter)


def weights_times(patch: pytest.MonkeyPatch, factor: float) -> None:
    sound = experience._loss_weights
    patch.setattr(experience, "_loss_weights", lambda *a: sound(*a) * factor)


def kl_times(patch: pytest.MonkeyPatch, factor: float) -> None:
    loss = algorithm.Algorithm.loss
    patch.setattr(
        algorithm.Algorithm,
        "loss",
        lambda self, x, c=1.0: loss(self, replace(x, kl_coef=factor * x.kl_coef), c),
    )


def groups_of_optimizer(patch: pytest.MonkeyPatch, key: str, value: Any) -> None:
    groups = optimizer._groups
    patch.setattr(optimizer, "_groups", lambda *a: [{**g, key: value} for g in groups(*a)])


def warmer(patch: pytest.MonkeyPatch) -> None:
    factor = optimizer.schedule_factor
    patch.setattr(optimizer, "schedule_factor", lambda *a: factor(*a) * 1.01)


SECOND_SITTING: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "dropped_picture": (lambda p: rendered(p, without_pictures), "prompt/media", ""),
    "longer_prompt": (
        lambda p: rendered(p, lambda r, s: replace(r(s), text=r(s).text + "Think.")),
        "prompt/text",
        "",
    ),
    "halved_picture": (lambda p: shown(p, halved), "media/patch_mean", "an altered image"),
    "mirrored_picture": (
        lambda p: shown(p, lambda image: image.transpose(0)),
        "media/patch_mean",
        "an altered image",
    ),
    "brighter_picture": (
        lambda p: shown(p, lambda image: image.point(lambda v: int(v * 0.99))),
        "media/patch_mean",
        "",
    ),
    "dearer_rewards": (dearer_rewards, "row/reward", ""),
    "ended_only": (mask_of_ended, "token/mask", "truncated completions are left out"),
    "hotter_engine": (hotter_engine, "token/rollout_logp", ""),
    "old_logprobs": (
        lambda p: (agreeing(p), scaled(p, LocalPolicy, "logprobs", 0.99)),
        "token/old_logp",
        "",
    ),
    "reference": (lambda p: scaled(p, FrozenReference, "logprobs", 0.99), "token/ref_logp", ""),
    "sign_of_advantage": (
        lambda p: with_advantages(p, lambda a: -a),
        "token/advantage",
        "the sign",
    ),
    "weight_1_percent": (lambda p: weights_times(p, 1.01), "token/weight", ""),
    # All completions are of one length here, so the first loss is 0, whatever it is multiplied by.
    "sign_of_loss": (
        lambda p: scaled(p, algorithm.Algorithm, "loss", -1.0),
        "param/delta_norm",
        "",
    ),
    "loss_1_percent": (
        lambda p: scaled(p, algorithm.Algorithm, "loss", 1.01),
        "param/grad_norm",
        "every gradient times 1.010",
    ),
    "no_kl": (lambda p: kl_times(p, 0.0), "update/loss", "no KL term"),
    "gradient_1_percent": (
        lambda p: scaled_gradient(p, 1.01),
        "param/grad_norm",
        "every gradient times 1.010",
    ),
    "rate_1_percent": (warmer, "update/lr", ""),
    "doubled_decay": (
        lambda p: groups_of_optimizer(p, "weight_decay", 0.02),
        "param/delta_norm",
        "",
    ),
    "beta1": (lambda p: groups_of_optimizer(p, "betas", (0.5, 0.999)), "param/delta_norm", ""),
}


def scaled_gradient(patch: pytest.MonkeyPatch, factor: float) -> None:
    backward = PackedModel.backward
    patch.setattr(PackedModel, "backward", lambda self, loss: backward(self, loss * factor))


ALL_SLOW_FAULTS = {**SLOW_FAULTS, **SECOND_SITTING}


@pytest.mark.parametrize(
    "name", [*FAULTS, *(pytest.param(name, marks=pytest.mark.slow) for name in ALL_SLOW_FAULTS)]
)
def test_audit_names_planted_fault(recorded, mmr1, monkeypatch, name: str) -> None:
    plant, quantity, mistake = {**FAULTS, **ALL_SLOW_FAULTS}[name]
    with monkeypatch.context() as patch:
        plant(patch)
        run = recorded()
    code, out = audited(mmr1, run)
    assert code == 1, out
    assert f"first difference: {quantity}" in out, out
    assert mistake in out, out


def test_audit_names_cut_that_the_configuration_does_not_have(recorded, mmr1, monkeypatch) -> None:
    """An engine that keeps fewer ids than top_p says, and reports them faithfully."""
    with monkeypatch.context() as patch:
        own = Distribution.of
        narrower = lambda sampling, forbidden=(): replace(own(sampling, forbidden), top_p=0.3)  # noqa: E731
        patch.setattr(hf, "Distribution", SimpleNamespace(of=narrower))
        run = recorded("rollout.top_p=0.6")
    code, out = audited(mmr1, run)
    assert code == 1, out
    assert "first difference: token/kept" in out, out


def test_audit_without_the_kept_ids_exits_2(recorded, mmr1, tmp_path: Path) -> None:
    file = next((recorded("rollout.top_p=0.6") / "steps").glob("*.safetensors"))
    with safe_open(str(file), "pt") as opened:
        names = [name for name in opened.keys() if "kept" not in name]  # noqa: SIM118
        tensors, metadata = {name: opened.get_tensor(name) for name in names}, opened.metadata()
    save_file(tensors, tmp_path / "step_000001.safetensors", metadata)
    code, out = audited(mmr1, tmp_path / "step_000001.safetensors")
    assert code == 2, out
    assert "token/kept" in out


@pytest.mark.parametrize("cut", [(0.1, 0, 1.0), (0.0, 7, 1.0), (0.0, 0, 0.7), (0.02, 9, 0.8)])
def test_second_cut_allows_what_rounded_logits_keep(cut) -> None:
    """Ties and ids at the edge are no difference; the least probable id is one."""
    generator, (min_p, top_k, top_p) = torch.Generator().manual_seed(0), cut
    engine = Distribution(1.0, min_p, top_k or formulas.TOP_K_LIMIT, top_p)
    missed = 0
    for number in range(200):
        logits = 2 * torch.randn(1, 60, generator=generator)
        exact = logits.round(decimals=1) if number % 3 == 0 else logits
        noise = 2e-4 * torch.randn(1, 60, generator=generator)
        ids = torch.from_numpy(kept_ids(engine.log_probs(exact + noise))[0]).long()
        logp = exact[0].double().log_softmax(0)
        own = formulas.Cut(*cut)
        assert own.allows(logp, ids, 2e-3)
        missed += own.allows(logp, torch.cat([ids, logp.argmin()[None]]), 2e-3)
        missed += own.allows(logp, ids[logp[ids].argsort()][1:][:-1], 2e-3)
    assert missed <= 4


def test_audit_refuses_key_it_does_not_know() -> None:
    with pytest.raises(AuditError, match="new_term=2, a key that the audit does not know"):
        read_recipe({"algorithm": {"new_term": 2}, "rollout": {}}, {})


def test_audit_of_run_with_demonstrations_exits_2(recorded, mmr1, digits: Path) -> None:
    run = recorded("algorithm.ptx.coef=0.1", f"algorithm.ptx.data={digits}/sft.jsonl")
    code, out = audited(mmr1, run)
    assert code == 2
    assert "algorithm.ptx" in out


def test_two_files_compare_at_first_difference(recorded, mmr1, tmp_path: Path) -> None:
    file = next((recorded() / "steps").glob("*.safetensors"))
    with safe_open(str(file), "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        metadata = opened.metadata()
    assert audited(mmr1, file, file)[0] == 0
    tensors["token/mask"][4] = 0
    save_file(tensors, tmp_path / "other.safetensors", metadata)
    code, out = audited(mmr1, file, tmp_path / "other.safetensors")
    assert code == 1
    assert "first difference: token/mask" in out


def test_unreadable_file_exits_2(mmr1, tmp_path: Path) -> None:
    file = tmp_path / "step_000001.safetensors"
    file.write_bytes(b"no tensors")
    code, out = audited(mmr1, file)
    assert code == 2
    assert "cannot be read" in out


def test_step_file_lacks_nothing_the_schema_requires(recorded) -> None:
    step = read_step_file(next((recorded() / "steps").glob("*.safetensors")))
    assert sum(step.lengths) == len(step.tensors["token/ids"])
    assert step.manifest["rows"][0].count(":") == 1


def test_schedule_by_hand() -> None:
    tree = {
        "optimizer": {
            "lr": 1.0,
            "scheduler": {"type": "linear", "warmup_steps": 2, "min_lr": 0.0, "steps": None},
        }
    }
    rates = [formulas.learning_rate(Recipe(tree, {}), taken, 6) for taken in range(6)]
    assert rates == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
