"""The routers of mixtures of experts: what they choose, and forwards with a choice of others.

A layer of transformers calls its experts with ``(hidden_states, experts, weights)``. Which experts
those are, its router decides by one ``topk`` over the scores of all; from the scores of the chosen
it computes their weights, each model in its own way. So a given choice takes the place of that
``topk``: the weights are then the router's own at the experts of the choice, with their gradients.

For a softmax that is the formula of rollout routing replay, R3 (arXiv 2510.11370): with I the
engine's choice and s the trainer's logits, ``g_i = I_i exp(s_i) / sum_j I_j exp(s_j)``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

_ATTRIBUTE = "_mmr1_routers"


@dataclass
class Routing:
    """Use of the routers in the forwards that it is given to.

    T tokens of a forward, row after row; L layers of the decoder; k experts per token.

    Attributes:
        replayed: ``[T, L, k]``, experts to compute with; None: the routers' own.
        own: The routers' own choice ``[T, k]`` int64 by layer, for each call of it.
        logits: The router's logits ``[T, experts]`` of the first call, by layer.
    """

    replayed: torch.Tensor | None = None
    own: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    logits: dict[int, torch.Tensor] = field(default_factory=dict)

    def chosen(self, layers: int) -> list[torch.Tensor]:
        """The own choice of each forward ``[T, layers, k]``; 0 in layers without experts."""
        calls = zip(*self.own.values(), strict=True)
        return [self._stacked(dict(zip(self.own, call, strict=True)), layers) for call in calls]

    def gap(self, engine: torch.Tensor) -> torch.Tensor:
        """``[T]``: the share of layers with experts in which another's choice is another set.

        Args:
            engine: ``[T, L, k]``.
        """
        differs = []
        for layer, calls in self.own.items():
            other = engine[:, layer].to(calls[0])
            differs.append((calls[0].sort(-1).values != other.sort(-1).values).any(-1))
        return torch.stack(differs).float().mean(0)

    @staticmethod
    def _stacked(of_layers: dict[int, torch.Tensor], layers: int) -> torch.Tensor:
        first = next(iter(of_layers.values()))
        out = first.new_zeros(len(first), layers, first.shape[1])
        for layer, chosen in of_layers.items():
            out[:, layer] = chosen
        return out


@dataclass
class Routers:
    """The routers of a model, whose forwards a :class:`Routing` may accompany.

    Attributes:
        experts: How many there are.
        layers: Layers of the decoder, those without experts included.
        loss: transformers' load-balancing loss for the model; None where it has none.
        running: Choice of the newest forward. It stays until the next one: the backward pass runs
            checkpointed layers again.
    """

    experts: int
    layers: int
    loss: Callable[..., Any] | None = None
    running: Routing | None = None

    def balance(self, routing: Routing, counts: torch.Tensor | None) -> torch.Tensor:
        """The load-balancing loss of a forward (Switch Transformers, arXiv 2101.03961).

        Args:
            counts: ``[T]``, 1 for tokens that count, else 0; None: all do.
        """
        assert self.loss is not None, "it is refused at the start"
        logits = tuple(routing.logits.values())
        width = next(iter(routing.own.values()))[0].shape[1]
        balanced: torch.Tensor = self.loss(logits, self.experts, width, counts)
        return balanced


def watch_routers(model: Any, key: str) -> Routers:
    """Watch the routers of a transformers model from now on.

    Args:
        key: Key of the configuration that asks for it.

    Raises:
        ValueError: If the model has no mixtures of experts, or some whose router cannot be
            followed.
    """
    if (known := routers_of(model)) is not None:
        return known
    decoder, config = model.get_decoder(), model.config.get_text_config()
    # The mark of transformers' own interface of experts.
    found = {n: m for n, m in decoder.named_modules() if hasattr(type(m), "_apply_gate")}
    if not found:
        raise ValueError(
            f"{key}, and {type(model).__name__} has no mixtures of experts of transformers' "
            "interface; leave it out"
        )
    logits = _logits(model)
    routers = Routers(next(iter(found.values())).num_experts, config.num_hidden_layers)
    for name, experts in found.items():
        block = decoder.get_submodule(name.rpartition(".")[0])
        layer = _Layer(routers, _number(name), type(block).__name__)
        experts.register_forward_pre_hook(layer.check)
        block.register_forward_pre_hook(layer.enter)
        block.register_forward_hook(layer.leave, always_call=True)
    for name, module in decoder.named_modules():
        for target, index in logits.items():
            if isinstance(module, target):
                module.register_forward_hook(_Logits(routers, _number(name), index))
                own = sys.modules[target.__module__]
                routers.loss = getattr(own, "load_balancing_loss_func", None)
    model.__dict__[_ATTRIBUTE] = routers
    return routers


def routers_of(model: Any) -> Routers | None:
    """Watched routers of a transformers model."""
    found: Routers | None = model.__dict__.get(_ATTRIBUTE)
    return found


def route(model: Any, routing: Routing | None) -> None:
    """Have a transformers model's next forwards, and their backward passes, go by ``routing``."""
    if (routers := routers_of(model)) is not None:
        routers.running = routing


def _logits(model: Any) -> dict[Any, int]:
    """Classes of routers, and which of their outputs the logits are."""
    known = {}
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            recorder: Any = (module._can_record_outputs or {}).get("router_logits")
            if hasattr(recorder, "target_class"):
                known[recorder.target_class] = recorder.index
    return known


def _number(name: str) -> int:
    numbered = re.search(r"(?:^|\.)(\d+)\.", name)
    assert numbered is not None, f"{name} is not in a list of layers"
    return int(numbered[1])


@dataclass
class _Logits:
    """A forward hook of a router."""

    routers: Routers
    layer: int
    index: int

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        if (routing := self.routers.running) is not None:
            logits = output[self.index] if isinstance(output, tuple) else output
            # A checkpointed layer runs again in the backward pass.
            routing.logits.setdefault(self.layer, logits.flatten(0, -2))


@dataclass
class _Layer:
    """Hooks of a layer's block, in which its router chooses, and of its experts."""

    routers: Routers
    number: int
    name: str
    choice: _Choice | None = None

    def enter(self, module: Any, args: Any) -> None:
        if (routing := self.routers.running) is not None:
            self.choice = _Choice(self.routers.experts, self._replayed(routing))
            self.choice.__enter__()

    def _replayed(self, routing: Routing) -> torch.Tensor | None:
        return None if routing.replayed is None else routing.replayed[:, self.number]

    def check(self, module: Any, args: Any) -> None:
        """Refuse a router whose choice is not that of one ``topk``."""
        if self.choice is None:
            return
        given, made = args[1], self.choice.made
        if len(made) != 1 or given.shape != made[0].shape:
            raise ValueError(
                f"the router of {self.name} does not choose experts by one topk over the scores "
                "of all, so its choice cannot be read; leave algorithm.router_replay and "
                "router_aux_loss_coef out"
            )

    def leave(self, module: Any, args: Any, output: Any) -> None:
        choice, self.choice = self.choice, None
        if choice is None:
            return
        choice.__exit__(None, None, None)
        routing = self.routers.running
        if routing is not None and choice.own is not None:
            routing.own.setdefault(self.number, []).append(choice.own)


class _Choice(TorchFunctionMode):
    """Reads the ``topk`` of a router, and answers it with another choice if there is one."""

    def __init__(self, experts: int, replayed: torch.Tensor | None) -> None:
        super().__init__()
        self.experts, self.replayed = experts, replayed
        self.own: torch.Tensor | None = None
        self.made: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "topk":
            return out
        scores = args[0] if args else kwargs["input"]
        if scores.dim() != 2 or scores.shape[1] != self.experts:  # of groups of experts
            return out
        self.own = out.indices.detach()
        if self.replayed is None:
            self.made.append(out.indices)
            return out
        chosen = self.replayed.to(scores.device, torch.int64)
        if chosen.shape != out.indices.shape:
            raise ValueError(
                f"the engine chose experts {[*chosen.shape]}, where the router has "
                f"{[*out.indices.shape]}: tokens, and experts of each; the two do not read the "
                "same model or prompt"
            )
        self.made.append(chosen)
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))
