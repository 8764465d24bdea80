"""Recompute a recorded step: from the raw row to the change of each parameter.

What the trainer drew is taken from the file: the completions, the reward of each function, the
critic's values, the tokens that Clip-Cov draws. All else is computed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from mmr1_contrib.lab.audit import formulas
from mmr1_contrib.lab.audit.formulas import AdamW, Scored, TokenInputs
from mmr1_contrib.lab.audit.forward import Model, Scores, moments_before
from mmr1_contrib.lab.audit.prompts import ReadPrompt, media_in_row, read_prompt
from mmr1_contrib.lab.audit.recipe import Recipe
from mmr1_contrib.lab.audit.step_file import AuditError, StepFile


@dataclass
class Recomputed:
    """A step computed a second time, with what guesses about a difference need.

    Attributes:
        file: The quantities, as a step file has them.
        recipe: Recipe that the configuration describes.
        prompts: Prompts by Hugging Face's road.
        models: The policy with the weights from before the step, and the reference; None without.
        scored: Inputs of the advantages.
        losses: Inputs of the loss of each optimizer step's completions, with their weights.
        first_step: Parameters, gradients and AdamW state before the first optimizer step.
        notes: Quantities that were not compared, and why.
    """

    file: StepFile
    recipe: Recipe
    prompts: Sequence[ReadPrompt]
    models: tuple[Model, Model | None]
    scored: Scored
    losses: list[list[tuple[TokenInputs, torch.Tensor]]] = field(default_factory=list)
    first_step: tuple[Mapping[str, Any], AdamW] | None = None
    notes: list[str] = field(default_factory=list)


def recompute(run: StepFile, recipe: Recipe, folder: Path | None, dtype: torch.dtype) -> Recomputed:
    """Compute the step's quantities again.

    Args:
        run: The recorded step.
        recipe: Recipe that the step's configuration describes.
        folder: Folder of the run, where its checkpoints are; None for a foreign file.
        dtype: Data type of the models.

    Raises:
        AuditError: If something that the computation needs is missing.
    """
    policy = Model(_weights_path(run, folder), dtype, recipe, _adapters_path(run, recipe, folder))
    reference = _reference(run, recipe, dtype)
    tps = policy.tokens_per_second
    messages = run.manifest.get("messages")
    if messages is None:
        raise AuditError("the manifest has no messages, which prompts are rendered from")
    prompts = [read_prompt(policy.processor, each, recipe, tps) for each in messages]
    tensors = dict(_of_prompts(run, prompts))
    scored, counted, rewards = _scored(run, recipe)
    tensors["row/reward"] = rewards
    tensors["token/mask"] = torch.cat(list(counted)).byte()
    scores = _scores(policy, run, prompts)
    ref = None if reference is None else _scores(reference, run, prompts)
    tensors |= _logprobs(run, recipe, scores, ref)
    tensors |= _kept(run, recipe, scores)
    scored = replace(scored, penalties=_penalties(recipe, run, scores, ref))
    by_token = formulas.advantages(recipe, scored)
    lengths = run.lengths
    parts = _mini_batches(run, recipe)
    by_token = _of_high_entropy(recipe, by_token, counted, scores, parts)
    tensors["token/advantage"] = torch.cat([row.float() for row in by_token])
    tensors["token/weight"] = _weights(run, recipe, counted, parts)
    result = Recomputed(
        StepFile(run.path, {**run.tensors, **tensors}, _manifest(run, prompts)),
        recipe,
        prompts,
        (policy, reference),
        scored,
    )
    weights = torch.split(tensors["token/weight"], lengths)
    _update(run, result, folder, by_token, weights, scores, ref, parts, tensors)
    result.file = StepFile(run.path, _complete(run, tensors), result.file.manifest)
    return result


def _complete(run: StepFile, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The recomputed tensors, with the ids and lengths that places are described by."""
    taken = ("row/length", "row/prompt", "prompt/length", "token/ids")
    return {**{name: run.tensors[name] for name in taken if name in run.tensors}, **tensors}


def _manifest(run: StepFile, prompts: Sequence[ReadPrompt]) -> dict[str, Any]:
    return {**run.manifest, "prompts": [prompt.text for prompt in prompts]}


# Models ------------------------------------------------------------------------------------------


def _weights_path(run: StepFile, folder: Path | None) -> str:
    """The model before the step: the run's own, or a checkpoint with merged weights."""
    named = str(run.manifest["weights"])
    if not named.startswith("checkpoints/"):
        return _existing(named, folder)
    if run.manifest["config"]["model"].get("lora") is not None:
        return _existing(str(run.manifest["config"]["model"]["path"]), folder)
    return str(_checkpoint(run, folder))


def _checkpoint(run: StepFile, folder: Path | None) -> Path:
    named = str(run.manifest["weights"])
    if folder is None or not (folder / named).is_dir():
        raise AuditError(
            f"the weights before the step were in {named}, which is not there any more; keep more "
            "checkpoints (trainer.checkpoints.save_total_limit)"
        )
    return folder / named


def _existing(path: str, folder: Path | None) -> str:
    """A model's folder as the run named it, or beside the run's folder; else a name on the Hub."""
    if Path(path).exists() or folder is None:
        return path
    beside = [parent / path for parent in folder.resolve().parents]
    return str(next((each for each in beside if each.exists()), path))


def _adapters_path(run: StepFile, recipe: Recipe, folder: Path | None) -> Path | None:
    if recipe.get("model.lora") is None:
        return None
    if not str(run.manifest["weights"]).startswith("checkpoints/"):
        return None  # new adapters add nothing: one factor of each is zero
    return _checkpoint(run, folder) / "adapter"


def _reference(run: StepFile, recipe: Recipe, dtype: torch.dtype) -> Model | None:
    if "token/ref_logp" not in run.tensors and recipe.get("algorithm.kl.type") != "full":
        return None
    config = run.manifest["config"]
    kind = recipe.get("algorithm.kl.reference.type", "initial")
    if kind == "moving" and run.manifest["step"] > recipe.get("algorithm.kl.reference.sync_steps"):
        raise AuditError("the reference has moved, and its weights are not in the step file")
    teacher = recipe.get("algorithm.advantage.teacher") or {}
    if teacher.get("type") == "server" or kind == "server":
        raise AuditError("the reference is behind a server")
    path = teacher.get("path") or recipe.get("algorithm.kl.reference.path")
    model = Model(_existing(str(path or config["model"]["path"]), None), dtype, recipe)
    return model


# Quantities --------------------------------------------------------------------------------------


def _of_prompts(run: StepFile, prompts: Sequence[ReadPrompt]) -> Mapping[str, torch.Tensor]:
    tensors = {"prompt/ids": torch.cat([prompt.ids for prompt in prompts]).int()}
    rows = [media_in_row(place) if place else None for place in run.manifest.get("rows", [])]
    if rows and None not in rows:
        tensors["prompt/media"] = torch.tensor(rows).int()
    grids = [prompt.grids for prompt in prompts if len(prompt.grids)]
    if grids:
        tensors["media/grid"] = torch.cat(grids)
    patches = [prompt.patches for prompt in prompts if prompt.patches is not None]
    if patches and len(patches) == len(grids):
        means = [patch.unflatten(1, (3, -1)).mean(2) for patch in patches]
        tensors["media/patch_mean"] = torch.cat(means)
    return tensors


def _scored(run: StepFile, recipe: Recipe) -> tuple[Scored, list[torch.Tensor], torch.Tensor]:
    """Inputs of the advantages, the tokens that count in the loss, and the total rewards."""
    functions = recipe.get("rewards", {})
    components = {
        name.removeprefix("row/reward."): values.double()
        for name, values in run.tensors.items()
        if name.startswith("row/reward.")
    }
    weights = {name: float(functions.get(name, {}).get("weight", 1.0)) for name in components}
    recorded = run.tensors["row/reward"].double()
    total = sum(weights[name] * values.nan_to_num() for name, values in components.items())
    rewards = torch.where(recorded.isnan(), torch.nan, total) if components else recorded
    bounds = recipe.get("algorithm.advantage.reward_clip_range")
    clipped = rewards if bounds is None else rewards.clamp(*bounds)
    valid = ~recorded.isnan()
    if "token/step_reward" in run.tensors:  # the rewards of steps decide, whatever the total is
        valid = torch.ones_like(valid)
    sampled = run.tensors.get("token/sampled", torch.ones_like(run.tensors["token/mask"])).bool()
    rows = torch.split(sampled, run.lengths)
    of_advantages = [row & ok for row, ok in zip(rows, valid, strict=True)]
    learned = of_advantages
    if recipe.get("algorithm.mask_truncated_completions"):
        cut = run.tensors["row/truncated"].bool()
        learned = [row & ~ended for row, ended in zip(of_advantages, cut, strict=True)]
    size = len(run.lengths) // len(set(run.prompts))
    greedy = run.tensors.get("prompt/greedy")
    values = run.tensors.get("token/value")
    steps = run.tensors.get("token/step_reward")
    scored = Scored(
        steps=None if steps is None else torch.split(steps, run.lengths),
        rewards=clipped.view(-1, size),
        components={name: value.view(-1, size) for name, value in components.items()},
        weights=weights,
        greedy=None if greedy is None else greedy.double(),
        counted=of_advantages,
        penalties=[torch.zeros(len(row)).double() for row in rows],
        values=None if values is None else torch.split(values.double(), run.lengths),
    )
    return scored, learned, rewards.float()


@torch.no_grad()
def _scores(model: Model, run: StepFile, prompts: Sequence[ReadPrompt]) -> list[Scores]:
    rows = torch.split(run.tensors["token/ids"], run.lengths)
    forbidden = run.manifest.get("forbidden", ())
    return [
        model.score(prompts[prompt], ids, forbidden, kept)
        for prompt, ids, kept in zip(run.prompts, rows, run.kept, strict=True)
    ]


def _logprobs(
    run: StepFile, recipe: Recipe, scores: Sequence[Scores], ref: Sequence[Scores] | None
) -> dict[str, torch.Tensor]:
    """Log-probs as the file has them; those sampled by other weights are taken from it."""
    old = torch.cat([score.logp for score in scores])
    tensors = {"token/old_logp": old, "token/rollout_logp": old}
    versions, now = run.tensors.get("row/version"), run.manifest.get("version")
    if versions is not None and now is not None and bool((versions != now).any()):
        own = (versions == now).repeat_interleave(run.tensors["row/length"])
        tensors["token/rollout_logp"] = torch.where(own, old, run.tensors["token/rollout_logp"])
    if (sampled := run.tensors.get("token/sampled")) is not None:
        tensors["token/rollout_logp"] = tensors["token/rollout_logp"] * sampled
    if ref is not None:
        tensors["token/ref_logp"] = torch.cat([score.logp for score in ref])
    return tensors


SLACK = {torch.float32: 2e-3, torch.float64: 2e-3, torch.bfloat16: 0.3}
"""Nats by which an id may lie on the other side of a cut, by the data type of the logits."""


def _kept(run: StepFile, recipe: Recipe, scores: Sequence[Scores]) -> dict[str, torch.Tensor]:
    """How many ids each token was sampled from: the file's number where its ids fit the cut.

    What other weights sampled is taken from the file. Within rounding, an id at the edge of the cut
    may have been kept or not.
    """
    cut = formulas.Cut(
        recipe.get("rollout.min_p", 0.0),
        recipe.get("rollout.top_k", 0),
        recipe.get("rollout.top_p", 1.0),
    )
    if cut.keeps_all:
        return {}
    if "token/kept" not in run.tensors:
        raise AuditError(
            "rollout.top_p, top_k or min_p: the step file does not hold the kept ids (token/kept)"
        )
    dtype = str(run.manifest["config"]["model"].get("dtype", "float32"))
    slack = SLACK.get(getattr(torch, dtype, torch.bfloat16), 0.3)
    recorded = run.tensors["token/kept"].clone()
    versions, now = run.tensors.get("row/version"), run.manifest.get("version")
    counts = torch.split(recorded, run.lengths)  # views: written in place
    for row, (score, kept) in enumerate(zip(scores, run.kept, strict=True)):
        if versions is not None and now is not None and int(versions[row]) != now:
            continue
        for token, ids in enumerate(kept or ()):
            if len(ids) and not cut.allows(score.whole[token].double(), ids, slack):
                counts[row][token] = int(cut.kept(score.whole[token].double()).sum())
    return {"token/kept": recorded}


def _penalties(
    recipe: Recipe, run: StepFile, scores: Sequence[Scores], ref: Sequence[Scores] | None
) -> list[torch.Tensor]:
    """KL penalty in the reward of each token, or what a teacher says of it."""
    kind = recipe.get("algorithm.advantage.type")
    in_reward = recipe.get("algorithm.kl.type") == "reward" or kind == "distillation"
    if ref is None or not in_reward:
        return [torch.zeros(length).double() for length in run.lengths]
    estimator = recipe.get("algorithm.kl.estimator", "k1")
    coefficient = recipe.coefficients["kl"]
    return [
        coefficient * formulas.ESTIMATORS[estimator](theirs.logp - own.logp).double()
        for own, theirs in zip(scores, ref, strict=True)
    ]


def _mini_batches(run: StepFile, recipe: Recipe) -> list[list[int]]:
    """Completions of each optimizer step of a pass."""
    prompts = run.prompts
    size = recipe.get("algorithm.ppo_mini_batch_size") or len(set(prompts))
    count = -(-len(set(prompts)) // size)
    return [[row for row, p in enumerate(prompts) if p // size == part] for part in range(count)]


def _of_high_entropy(
    recipe: Recipe,
    by_token: Sequence[torch.Tensor],
    counted: Sequence[torch.Tensor],
    scores: Sequence[Scores],
    parts: Sequence[Sequence[int]],
) -> list[torch.Tensor]:
    """Advantages of the tokens of the highest entropy, and of the tokens that count."""
    rows = [row * mask for row, mask in zip(by_token, counted, strict=True)]
    share = recipe.get("algorithm.loss.top_entropy_quantile", 1.0)
    if share >= 1:
        return rows
    for part in parts:
        entropies = torch.cat([scores[row].entropy[counted[row]] for row in part])
        if len(entropies) == 0:
            continue
        bound = torch.quantile(entropies, 1 - share, interpolation="higher")
        for row in part:
            rows[row] = rows[row] * (scores[row].entropy >= bound)
    return rows


def _weights(
    run: StepFile,
    recipe: Recipe,
    counted: Sequence[torch.Tensor],
    parts: Sequence[Sequence[int]],
) -> torch.Tensor:
    mode = recipe.get("algorithm.loss.agg_mode", "seq-mean-token-mean")
    limit = recipe.get("rollout.max_response_length")
    if recipe.get("algorithm.loss.agg_scope") == "rollout":
        return (formulas.token_weights(mode, counted, limit) * len(parts)).float()
    of_part = [formulas.token_weights(mode, [counted[r] for r in part], limit) for part in parts]
    rows: dict[int, torch.Tensor] = {}
    for part, weights in zip(parts, of_part, strict=True):
        split = torch.split(weights, [run.lengths[row] for row in part])
        rows |= dict(zip(part, split, strict=True))
    return torch.cat([rows[row] for row in range(len(rows))]).float()


# The update --------------------------------------------------------------------------------------


def _update(
    run: StepFile,
    result: Recomputed,
    folder: Path | None,
    by_token: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    scores: Sequence[Scores],
    ref: Sequence[Scores] | None,
    parts: Sequence[Sequence[int]],
    tensors: dict[str, torch.Tensor],
) -> None:
    """Repeat the optimizer steps; adds ``update/*`` and ``param/*`` to the tensors."""
    if "update/loss" not in run.tensors:
        return
    recipe, (policy, _) = result.recipe, result.models
    named = _trained(run, policy, result.notes)
    optimizer = _optimizer(run, recipe, folder, named)
    start = {name: parameter.detach().clone() for name, parameter in policy.parameters.items()}
    passes = recipe.get("algorithm.ppo_epochs", 1)
    computed = passes * len(parts) == 1 and "token/old_logp" not in run.tensors
    rates, losses = _rates(run, recipe, passes * len(parts)), list[float]()
    norms, gradients, changes = list[float](), list[list[float]](), list[list[float]]()
    steps = [part for _ in range(passes) for part in parts]
    for step, part in enumerate(steps if named else steps[:1]):
        for parameter in policy.parameters.values():
            parameter.grad = None
        inputs, total = [], 0.0
        for row in part:
            x = _token_inputs(run, result, row, by_token, scores, ref, computed)
            loss = (weights[row] * formulas.token_loss(recipe, x)).sum()
            loss.backward()
            total += float(loss.detach())
            inputs.append((_detached(x), weights[row]))
        result.losses.append(inputs)
        losses.append(total)
        gradients.append([_norm(parameter.grad) for parameter in named.values()])
        if result.first_step is None:
            before = {n: (p.detach().clone(), p.grad) for n, p in named.items()}
            result.first_step = before, copy.deepcopy(optimizer)
        norm, change = optimizer.step(named, rates[step])
        norms.append(norm)
        changes.append([change[name] for name in named])
    tensors |= {
        "update/loss": torch.tensor(losses),
        "update/lr": torch.tensor(rates),
    }
    if named:
        tensors |= {
            "update/grad_norm": torch.tensor(norms),
            "param/grad_norm": torch.tensor(gradients),
            "param/delta_norm": torch.tensor(changes),
        }
    with torch.no_grad():  # guesses start from the weights before the step
        for name, parameter in policy.parameters.items():
            parameter.copy_(start[name])


def _trained(run: StepFile, policy: Model, notes: list[str]) -> dict[str, torch.nn.Parameter]:
    """Parameters that the run trained, by its names; none if they are not on the disk."""
    parameters, names = policy.parameters, list(run.manifest.get("parameters", ()))
    plain = {name.replace(".default.", "."): name for name in names}
    found = {theirs: parameters[own] for own, theirs in plain.items() if own in parameters}
    if len(found) < len(names):
        notes.append(
            "only the loss of the first optimizer step is compared: the adapters before the first "
            "step are not on the disk; audit a step after a checkpoint"
        )
        found = {}
    for name, parameter in policy.module.named_parameters():
        parameter.requires_grad_(name in found or not found)
    return found


def _optimizer(
    run: StepFile, recipe: Recipe, folder: Path | None, named: Mapping[str, torch.nn.Parameter]
) -> AdamW:
    settings = {key: recipe.get(f"optimizer.{key}") for key in ("betas", "weight_decay")}
    settings["max_grad_norm"] = recipe.get("optimizer.max_grad_norm")
    settings["decays_vectors"] = recipe.get("optimizer.decay_norms_and_biases", True)
    if recipe.get("optimizer.lr_of_parts"):
        raise AuditError("it cannot be recomputed: optimizer.lr_of_parts")
    optimizer = AdamW(settings)
    if named and str(run.manifest["weights"]).startswith("checkpoints/"):
        optimizer.state |= moments_before(_checkpoint(run, folder))
    return optimizer


def _rates(run: StepFile, recipe: Recipe, count: int) -> list[float]:
    taken = int(run.manifest.get("steps_before", 0))
    total = recipe.optimizer_steps
    return [formulas.learning_rate(recipe, taken + step, total) for step in range(count)]


def _token_inputs(
    run: StepFile,
    result: Recomputed,
    row: int,
    by_token: Sequence[torch.Tensor],
    scores: Sequence[Scores],
    ref: Sequence[Scores] | None,
    computed: bool,
) -> TokenInputs:
    policy, _ = result.models
    ids = torch.split(run.tensors["token/ids"], run.lengths)[row]
    prompt = result.prompts[run.prompts[row]]
    score = policy.score(prompt, ids, run.manifest.get("forbidden", ()), run.kept[row])

    def recorded(name: str) -> torch.Tensor | None:
        values = run.tensors.get(name)
        return None if values is None else torch.split(values, run.lengths)[row]

    full = None
    if result.recipe.get("algorithm.kl.type") == "full":
        assert ref is not None
        beta = result.recipe.get("algorithm.kl.jsd_beta", 1.0)
        full = formulas.divergence(score.distribution, ref[row].distribution, beta)
    chosen, rollout, mask = (
        recorded("token/chosen"),
        recorded("token/rollout_logp"),
        recorded("token/mask"),
    )
    assert mask is not None
    old = score.logp.detach() if computed else scores[row].logp
    return TokenInputs(
        logp=score.logp,
        old=old,
        rollout=old if rollout is None else rollout,
        advantage=by_token[row].float(),
        counted=mask.bool(),
        entropy=score.entropy,
        ref=None if ref is None else ref[row].logp,
        full_kl=full,
        masked=recorded("token/masked_logp"),
        chosen=None if chosen is None else chosen.bool(),
    )


def _detached(x: TokenInputs) -> TokenInputs:
    values = ((each.name, getattr(x, each.name)) for each in fields(x))
    detached: dict[str, Any] = {name: t if t is None else t.detach() for name, t in values}
    return TokenInputs(**detached)


def _norm(gradient: torch.Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.double().norm())
