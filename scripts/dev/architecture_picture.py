"""Draw ``docs/images/architecture.svg``, the picture of the packages.

python scripts/dev/architecture_picture.py            # write it
python scripts/dev/architecture_picture.py --check    # fail if it is not what this gives
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from statistics import fmean

PICTURE = Path(__file__).parents[2] / "docs/images/architecture.svg"
ARROWS = {
    "cli": ["evaluation", "recipes", "start", "estimate"],
    "python": ["start"],
    "start": ["estimate", "trainer.inputs"],
    "estimate": ["trainer.models"],
    "datasets_prep": ["data"],
    "evaluation": ["trainer.inputs", "report"],
    "mmr1_contrib.offline": ["trainer.offline", "trainer.train", "datasets_prep"],
    "trainer.sft": ["trainer.offline"],
    "trainer.offline": ["trainer.distributed", "trainer.run", "trainer.inputs"],
    "trainer.train": [
        "trainer.loop",
        "trainer.distributed",
        "trainer.validation",
        "trainer.run",
        "trainer.inputs",
    ],
    "trainer.loop": ["trainer.sampler"],
    "trainer.run": ["trainer.runs"],
    "trainer.sampler": ["trainer.sampling", "trainer.runs"],
    "trainer.distributed": ["trainer.models", "rollout"],
    "trainer.validation": ["trainer.sampling"],
    "trainer.sampling": ["trainer.models", "rollout", "rewards"],
    "trainer.runs": ["trainer.models"],
    "trainer.models": ["trainer.forward"],
    "trainer.forward": ["algorithms", "attention", "vision"],
    "report": ["rewards"],
    "rollout": ["environments", "attention", "vision"],
    "environments": ["rewards", "vision"],
    "data": ["vision"],
    "trainer.inputs": ["data"],
    "mmr1_contrib": ["config"],
    "rewards": ["part"],
    "vision": ["config"],
    "algorithms": ["part"],
    "engines": ["part"],
    "part": ["registry"],
    "config": ["algorithms", "engines", "rewards"],
}
"""Who imports whom: the arrows that explain the structure, not all of them."""
ABOUT = {
    "start": "starts the runs of all commands",
    "python": "mmr1.Trainer",
    "mmr1_contrib": "wings beside the core",
    "estimate": "what a run needs of GPUs",
    "datasets_prep": "mmr1-data",
    "evaluation": "benchmarks, comparisons",
    "report": "the HTML page",
    "mmr1_contrib.offline": "DPO, reward models",
    "trainer.sft": "mmr1 sft",
    "trainer.offline": "learning from records",
    "trainer.train": "sets a run up",
    "trainer.distributed": "FSDP2 ranks, Ray actors",
    "trainer.validation": "held-out accuracy",
    "trainer.loop": "the training loop",
    "trainer.run": "records, saves, stops, resumes",
    "trainer.sampler": "the batches of the steps",
    "trainer.sampling": "rewards, experience, parity",
    "rollout": "vLLM, transformers",
    "rewards": "functions, plugins, sandbox",
    "trainer.runs": "checkpoints, metrics, trackers",
    "trainer.models": "policy, critic, reference, optimizer",
    "trainer.forward": "the packed forward",
    "algorithms": "advantages, losses, KL",
    "engines": "what engines take, need, can",
    "attention": "attention of packed sequences",
    "environments": "tools, custom environments",
    "data": "records, prompts, sampler",
    "vision": "media, model families",
    "trainer.inputs": "the data, read and checked",
    "config": "every key and its default",
    "registry": "names of plugins",
    "part": "one file, one declaration",
    "recipes": "recipes of papers",
    "cli": "the command line",
}
WIDTH, HEIGHT, GAP_X, GAP_Y = 204, 40, 14, 40
STYLE = """
  rect { fill: #f6f8fa; stroke: #0072b2; rx: 5; } path { fill: none; stroke: #7f7f7f; opacity: .7; }
  text { font: 600 13px sans-serif; text-anchor: middle; fill: #1b1f24; }
  .about { font: 11px sans-serif; fill: #5f6b7a; }
  @media (prefers-color-scheme: dark) {
    rect { fill: #1c2229; stroke: #56b4e9; } text { fill: #e6e9ee; } .about { fill: #9aa7b6; } }
"""


def rows() -> list[list[str]]:
    """The packages by depth: each stands below all that import it, near the middle of them."""
    depth: dict[str, int] = {}

    def put(name: str, at: int) -> None:
        if depth.get(name, -1) < at:
            depth[name] = at
            for below in ARROWS.get(name, ()):
                put(below, at + 1)

    targets = {name for below in ARROWS.values() for name in below}
    for root in (name for name in ARROWS if name not in targets):
        put(root, 0)
    found: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    place: dict[str, float] = {}
    for at, row in enumerate(found):
        above = {n: [place[a] for a in ARROWS if n in ARROWS[a]] for n in depth if depth[n] == at}
        row += sorted(above, key=lambda name: fmean(above[name] or [len(place)]))
        place |= {name: index - (len(row) - 1) / 2 for index, name in enumerate(row)}
    return found


def picture() -> str:
    """The SVG."""
    found = rows()
    width = max(len(row) for row in found) * (WIDTH + GAP_X) + GAP_X
    height = len(found) * (HEIGHT + GAP_Y) + GAP_X
    at = {}
    for y, row in enumerate(found):
        left = (width - len(row) * (WIDTH + GAP_X) + GAP_X) / 2
        for x, name in enumerate(row):
            at[name] = (left + x * (WIDTH + GAP_X), 8 + y * (HEIGHT + GAP_Y))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<title>The packages of mmr1 and who imports whom</title><style>{STYLE}</style>",
    ]
    for name, below in ARROWS.items():
        for other in below:
            (x, y), (to_x, to_y) = at[name], at[other]
            x, to_x, y = x + WIDTH / 2, to_x + WIDTH / 2, y + HEIGHT
            middle = (y + to_y) / 2
            parts.append(f'<path d="M{x},{y} C{x},{middle} {to_x},{middle} {to_x},{to_y}"/>')
    for name, (x, y) in at.items():
        title, about = escape(name), escape(ABOUT.get(name, ""))
        middle = x + WIDTH / 2
        parts.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"/>')
        parts.append(f'<text x="{middle}" y="{y + (17 if about else 25)}">{title}</text>')
        parts.append(f'<text class="about" x="{middle}" y="{y + 32}">{about}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> int:
    if "--check" in sys.argv:
        return int(not PICTURE.is_file() or PICTURE.read_text() != picture())
    PICTURE.write_text(picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
