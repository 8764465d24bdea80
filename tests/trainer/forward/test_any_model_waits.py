"""How often a forward of a model without a family asks a GPU for a number."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from mmr1.trainer.forward.any_model.forward import admit
from mmr1.trainer.forward.any_model.sharing import probe
from mmr1.trainer.forward.scores import completion_scores
from tests.trainer.forward.any_models import group

WAITING = ("_local_scalar_dense", "nonzero", "equal")


class Waits(TorchDispatchMode):
    """Counts the operators whose result the host needs."""

    count = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += call.overloadpacket.__name__ in WAITING
        return call(*args, **(kwargs or {}))


def waits(layers: int) -> int:
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "head_dim": 16,
        "num_hidden_layers": layers,
    }
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 16}
    model = Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=300, **shape, **heads))
    groups = [group(40, (12, 10), number) for number in range(2)]
    verdict = probe(Gemma3ForCausalLM, model.config, groups)
    assert verdict.status == "packed", verdict.why
    admit(model, verdict)
    with Waits() as counted:
        completion_scores(model, groups).logprobs.sum().backward()
    return counted.count


def test_windowed_layers_ask_no_number_of_their_own():
    assert waits(layers=6) == waits(layers=12)
