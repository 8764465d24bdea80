"""Write the table of presets in docs/algorithms.md from ``mmr1/config/presets.py``.

python scripts/dev/algorithm_table.py            write it
python scripts/dev/algorithm_table.py --check    exit with 1 when it is not what it should be
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from page_table import write_or_check

from mmr1.config.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs/algorithms.md"
HEAD = "| name | advantage | loss | filter_groups | paper | when to choose it |"
ABOUT = {
    "grpo": ("2402.03300", "the usual first choice"),
    "dr_grpo": ("2503.20783", "no bias by length or difficulty"),
    "dapo": ("2503.14476", "long reasoning"),
    "gspo": ("2507.18071", "mixture-of-experts models, several updates per rollout"),
    "cispo": ("2506.13585", "rare tokens keep their gradient"),
    "sapo": ("2511.20347", "a smooth gate instead of the clip"),
    "clip_cov": ("2505.22617", "the entropy collapses"),
    "kl_cov": ("2505.22617", "the entropy collapses"),
    "rloo": ("2402.14740", "unbiased, no division by the deviation"),
    "gpg": ("2504.02546", "the plain policy gradient, scaled up for groups without a signal"),
    "reinforce": ("Williams 1992", "the simplest baseline; works with n = 1"),
    "remax": ("2310.10505", "a baseline for n = 1, at the cost of one more rollout"),
    "reinforce_pp": ("2501.03262", "no groups; prompts of similar difficulty"),
    "reinforce_pp_baseline": (
        "2501.03262",
        "groups, without GRPO's division by each group's deviation",
    ),
    "ppo": (
        "1707.06347, 1506.02438, 2203.02155",
        "an advantage per token; works with n = 1, at the cost of a second model",
    ),
    "process_grpo": ("2402.03300", "steps can be judged; see below"),
    "on_policy_distillation": (
        "2306.13649, 2306.08543",
        "a stronger model of the same vocabulary is at hand",
    ),
}
"""Papers, and when to choose a preset."""


def _rows() -> Iterator[str]:
    assert ABOUT.keys() == PRESETS.keys(), ABOUT.keys() ^ PRESETS.keys()
    for name, preset in PRESETS.items():
        papers, use = ABOUT[name]
        parts = (_shown(preset[key]) for key in ("advantage", "loss", "filter_groups"))
        yield f"| {' | '.join((f'`{name}`', *parts, _linked(papers), use))} |"


def _shown(part: Mapping[str, Any] | None) -> str:
    """The type, and what differs from its defaults."""
    if part is None:
        return ""
    return ", ".join(f"`{v}`" if k == "type" else f"`{k}: {v}`" for k, v in part.items())


def _linked(papers: str) -> str:
    return re.sub(r"\d{4}\.\d{5}", r"[\g<0>](https://arxiv.org/abs/\g<0>)", papers)


if __name__ == "__main__":
    write_or_check(PAGE, HEAD, _rows())
