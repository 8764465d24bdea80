"""A model of transformers and its log-probs, one completion and one forward pass at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoProcessor, AutoTokenizer

from mmr1_contrib.lab.audit.prompts import ReadPrompt
from mmr1_contrib.lab.audit.recipe import Recipe
from mmr1_contrib.lab.audit.step_file import AuditError

Alter = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of the tokens of a completion.

    Attributes:
        logp: Log-probs under the sampling distribution, ``[R]``.
        entropy: Entropies, ``[R]``.
        distribution: Log-probs of all tokens, ``[R, V]``; -inf for those that cannot be sampled.
        whole: Log-probs of all tokens before anything is cut, ``[R, V]``.
    """

    logp: torch.Tensor
    entropy: torch.Tensor
    distribution: torch.Tensor
    whole: torch.Tensor


class Model:
    """A policy or a reference.

    Args:
        path: Folder or name of the model.
        dtype: Data type that it computes in.
        recipe: Adapters and frozen parts.
        adapters: Folder of the adapters before the step; None: they are zero, or there are none.
    """

    def __init__(
        self, path: str, dtype: torch.dtype, recipe: Recipe, adapters: Path | None = None
    ) -> None:
        transformers.logging.set_verbosity_error()
        config = AutoConfig.from_pretrained(path)
        with_images = hasattr(config, "vision_config")
        auto = "AutoModelForImageTextToText" if with_images else "AutoModelForCausalLM"
        self.module = getattr(transformers, auto).from_pretrained(
            path, dtype=dtype, attn_implementation="eager"
        )
        self.module.eval()
        self.processor = processor_of(path)
        vision = getattr(config, "vision_config", None)
        self.tokens_per_second = float(getattr(vision, "tokens_per_second", 1) or 1)
        self.adapters = _adapters(self.module, recipe, adapters)
        self._temperature = float(recipe.get("rollout.temperature", 1.0))

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by name, adapters by peft's names."""
        return {**dict(self.module.named_parameters()), **self.adapters}

    def score(
        self,
        prompt: ReadPrompt,
        ids: torch.Tensor,
        forbidden: Sequence[int],
        kept: Sequence[torch.Tensor] | None = None,
        alter: Alter | None = None,
        temperature: float | None = None,
    ) -> Scores:
        """Score a completion in a forward pass of its own.

        Args:
            ids: Token ids of the completion, ``[R]``.
            forbidden: Ids that are never sampled.
            kept: Ids that the engine kept for each token, none where it kept all.
            alter: Changes the pixels.
            temperature: Temperature in place of the recipe's.
        """
        count, whole = len(ids), torch.cat([prompt.ids.long(), ids.long()])[None]
        inputs = dict(prompt.inputs)
        for name in ("pixel_values", "pixel_values_videos"):
            if alter is not None and name in inputs:
                inputs[name] = alter(inputs[name])
        inputs["attention_mask"] = torch.ones_like(whole)
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in inputs:
                zeros = torch.zeros(1, count, dtype=inputs[name].dtype)
                inputs[name] = torch.cat([inputs[name], zeros], 1)
        if prompt.positions is not None:
            positions, after = prompt.positions
            following = (after + torch.arange(count)).expand(3, -1)
            inputs["position_ids"] = torch.cat([positions, following], 1)[:, None]
            inputs.pop("second_per_grid_ts", None)
        dtype = self.module.dtype
        inputs["input_ids"], device = whole, self.module.device
        cast = {
            k: v.to(device, dtype) if v.is_floating_point() else v.to(device)
            for k, v in inputs.items()
        }
        logits = self.module(use_cache=False, **cast).logits[0, -count - 1 : -1].cpu()
        logits = logits if dtype == torch.float64 else logits.float()
        logits = logits / (temperature or self._temperature)
        allowed = torch.ones(logits.shape[-1], dtype=torch.bool)
        allowed[list(forbidden)] = False
        whole = logits.masked_fill(~allowed, -torch.inf).log_softmax(-1)
        able = allowed.expand(logits.shape).clone()
        for row, ids_of_token in zip(able, kept or (), strict=False):
            if len(ids_of_token):
                row.zero_()[ids_of_token] = True
        distribution = logits.masked_fill(~able, -torch.inf).log_softmax(-1)
        finite = torch.where(able, distribution, 0.0)
        entropy = -(distribution.exp() * finite).sum(-1)
        logp = distribution.gather(1, ids.long()[:, None])[:, 0]
        return Scores(logp, entropy, distribution, whole)

    @contextmanager
    def blind(self) -> Iterator[None]:
        """Within the block the features of images and videos are zero."""
        towers = [
            m for n, m in self.module.named_modules() if n.endswith(("visual", "vision_tower"))
        ]

        def zeroed(module: Any, arguments: Any, output: Any) -> Any:
            if isinstance(output, torch.Tensor):
                return output * 0
            for key in ("pooler_output", "last_hidden_state"):
                if getattr(output, key, None) is not None:
                    output[key] = output[key] * 0
            return output

        hooks = [tower.register_forward_hook(zeroed) for tower in towers[:1]]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def processor_of(path: str) -> Any:
    """Return the processor of a model, or the tokenizer of a text model."""
    with_images = hasattr(AutoConfig.from_pretrained(path), "vision_config")
    return (AutoProcessor if with_images else AutoTokenizer).from_pretrained(path)


def _adapters(
    module: torch.nn.Module, recipe: Recipe, folder: Path | None
) -> dict[str, torch.nn.Parameter]:
    """Add LoRA adapters to the layers that they belong to; return their parameters."""
    if recipe.get("model.lora") is None or folder is None:
        return {}
    scale = recipe.get("model.lora.alpha") / recipe.get("model.lora.rank")
    stored = load_file(folder / "adapter_model.safetensors")
    layers = dict(module.named_modules())
    found: dict[str, torch.nn.Parameter] = {}
    for name in (n for n in stored if ".lora_A." in n):
        layer = name.removeprefix("base_model.model.").partition(".lora_A.")[0]
        pair = [
            torch.nn.Parameter(stored[key].to(layers[layer].weight.dtype))
            for key in (name, name.replace(".lora_A.", ".lora_B."))
        ]
        found |= {name: pair[0], name.replace(".lora_A.", ".lora_B."): pair[1]}
        layers[layer].register_forward_hook(_adapter_hook(pair[0], pair[1], scale))
    return found


def _adapter_hook(a: torch.Tensor, b: torch.Tensor, scale: float) -> Callable[..., torch.Tensor]:
    def added(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        return output + scale * (arguments[0] @ a.T) @ b.T

    return added


def moments_before(folder: Path) -> Mapping[str, tuple[torch.Tensor, torch.Tensor, int]]:
    """Return AdamW's state of a checkpoint: first and second moment and step count by parameter.

    Raises:
        AuditError: If the checkpoint holds none, or in another form.
    """
    files = sorted((folder / "training" / "optimizer").glob("*.safetensors"))
    if not files:
        raise AuditError(f"{folder} has no optimizer state; its step cannot be repeated")
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        tensors |= load_file(file)
    names = [name.removeprefix("exp_avg.") for name in tensors if name.startswith("exp_avg.")]
    return {
        name: (
            tensors[f"exp_avg.{name}"].double(),
            tensors[f"exp_avg_sq.{name}"].double(),
            int(tensors[f"step.{name}"]),
        )
        for name in names
    }
