"""Write an exact recipe whose prompt and rewards are those of the recipe's own YAML.

    python scripts/recipes/without_original.py EXACT OWN OUTPUT

For ``--exact --smoke`` where there is no checkout of the original to read them from.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml


def main(exact: Path, own: Path, output: Path) -> None:
    tree, ours = (yaml.safe_load(path.read_text()) for path in (exact, own))
    if "rewards" in tree or "ORIGINAL" in exact.read_text():
        print(f"ORIGINAL is not set: prompt and rewards are those of {own}", flush=True)
    for key in ("prompt_template", "system_prompt"):
        tree["data"][key] = ours["data"].get(key)
    if "rewards" in tree:
        tree["rewards"] = ours["rewards"]
    output.write_text(yaml.safe_dump(tree, sort_keys=False))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
