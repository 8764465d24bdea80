"""The log-prob head and the packed attention, against plain PyTorch.

    python scripts/bench/parts.py

Head: 2,048 tokens over Qwen2.5-VL's vocabulary, against ``log_softmax`` of all logits. Attention: 8
segments in 4,096 tokens, against a dense mask. Forward and backward; peak memory is measured in a
separate process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import common
import torch
from torch.nn import functional as F

from mmr1.attention import Blocks
from mmr1.trainer.forward.logprob_head import token_logprobs
from mmr1.trainer.forward.packing import AttentionLayout, packed_attention


def head_case(name: str, tokens: int = 2048, hidden_size: int = 256, vocabulary: int = 151_936):
    torch.manual_seed(0)
    hidden = torch.randn(tokens, hidden_size, requires_grad=True)
    weight = (torch.randn(vocabulary, hidden_size) * 0.05).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,))

    def naive() -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = (hidden @ weight.T).log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, targets[:, None])[:, 0], entropy

    def run() -> None:
        hidden.grad = weight.grad = None
        pair = naive() if name == "naive" else token_logprobs(hidden, weight, targets)
        (pair[0].sum() + 0.01 * pair[1].sum()).backward()

    return run


def attention_case(name: str, segments: int = 8, tokens: int = 4096, heads: int = 8):
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, tokens, 64, requires_grad=True) for _ in range(3))
    length = tokens // segments
    cpu = torch.device("cpu")
    prefixes = Blocks((length,) * segments, (length,) * segments, causal=True, device=cpu)
    none = Blocks((), (), causal=True, device=cpu)
    layout = AttentionLayout(prefixes, none, none)
    mask = None
    if name == "dense":
        mask = torch.block_diag(*[torch.ones(length, length).tril()] * segments).bool()

    def run() -> None:
        query.grad = key.grad = value.grad = None
        if mask is not None:
            out = F.scaled_dot_product_attention(query, key, value, mask, scale=0.125)
        else:
            module = torch.nn.Identity()
            out, _ = packed_attention(module, query, key, value, None, scaling=0.125, layout=layout)
        out.sum().backward()

    return run


CASES: dict[str, tuple[Callable[[str], Callable[[], None]], tuple[str, str]]] = {
    "head": (head_case, ("chunked", "naive")),
    "attention": (attention_case, ("packed", "dense")),
}


def peak(case: str, name: str) -> None:
    """Print the growth of this process's peak memory over one run."""
    torch.set_num_threads(1)
    run = CASES[case][0](name)
    before = common.peak_rss_mib()
    run()
    print(json.dumps({"MiB": common.peak_rss_mib() - before}))


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "--peak":
        peak(*sys.argv[2:])
        return
    parser = common.parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for case in args.cases:
        make, (ours, theirs) = CASES[case]
        times = common.interleaved({name: make(name) for name in (ours, theirs)}, args.repeats)
        mib = {
            name: common.in_new_process(__file__, ["--peak", case, name])["MiB"]
            for name in (ours, theirs)
        }
        rows.append(
            {
                "case": case,
                "s ours": times[ours],
                "s plain": times[theirs],
                "time ratio": times[ours] / times[theirs],
                "MiB ours": mib[ours],
                "MiB plain": mib[theirs],
                "memory ratio": mib[ours] / max(mib[theirs], 1),
            }
        )
    common.table(rows)
    common.save(args.output, "parts", {"rows": rows})


if __name__ == "__main__":
    main()
