"""Collect what the tree gives today into one JSON file, and tell what a change of the code changes.

    python scripts/dev/baselines.py --write before.json
    python scripts/dev/baselines.py --compare before.json                 # exit 1 on a difference
    python scripts/dev/baselines.py --compare before.json --only help     # all lines of a section

It looks at the checkout in the current folder; for another one than that of this file, ``cd`` there
and set PYTHONPATH to it. A section holds items, and an item keys with their values. A section that
cannot be collected holds the reason instead, which counts as a difference. ``digests`` and
``passes`` hold for one machine, everything else for all.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

Values = dict[str, Any]
Section = dict[str, Values]
"""Items, each with its keys and their values."""

ROOT = Path.cwd()
SHOWN = 12
"""Lines of a section, where several are compared."""


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; lists are values."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from flat(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, without_paths(value)


def without_paths(value: Any) -> Any:
    """The value in which this machine's folders are names."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+", "TMP", text)
    return json.loads(text.replace(str(ROOT), "CHECKOUT").replace(str(Path.home()), "HOME"))


def rows_of(file: Path) -> list[Values]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def mmr1(*arguments: object) -> tuple[str, bool]:
    """What a command of ours prints, and whether it is refused."""
    from typer.testing import CliRunner

    from mmr1.cli import app

    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    refused = f"{done.output}{done.exception}" if done.exit_code else ""
    return without_paths(refused or done.output), bool(refused)


# --- sections, each of which gets an empty folder ------------------------------------------------


def structure(work: Path) -> Section:
    """Lines of code of each room, and what the loop imports."""
    import rooms

    return {
        "lines": dict(rooms.counted(ROOT)),
        "imports at once": dict(rooms.import_closure(ROOT, lazy=False)),
        "imports, later ones too": dict(rooms.import_closure(ROOT)),
    }


def help_tree(work: Path) -> Section:
    """Every command of both programs, with its arguments and options."""
    import typer

    from datasets_prep.data_cli import app as data_app
    from mmr1.cli import app

    return {
        name: {"help": command.help, **{", ".join(of.opts): about(of) for of in command.params}}
        for program, of in (("mmr1", app), ("mmr1-data", data_app))
        for name, command in commands(program, typer.main.get_command(of))
    }


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command and those below it, with their full names."""
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {word}", below)


def about(of: Any) -> str:
    text = " ".join((getattr(of, "help", None) or "").split())
    return f"{text} (default {of.default}, required {of.required})"


def public_names(work: Path) -> Section:
    """The names of ``mmr1`` and ``mmr1.parts``, and those that pages and examples import."""
    modules = map(importlib.import_module, ("mmr1", "mmr1.parts"))
    found = {m.__name__: {name: shape(getattr(m, name)) for name in m.__all__} for m in modules}
    globs = ("*.md", "docs/*.md", "scripts/examples/*.py")
    text = "\n".join(page.read_text() for of in globs for page in sorted(ROOT.glob(of)))
    named = re.findall(r"^ *from ((?:mmr1|datasets_prep)[\w.]*) import (\w+)", text, re.M)
    return {**found, "pages": {f"{module}.{name}": "imported" for module, name in sorted(named)}}


def shape(value: Any) -> str:
    """The parameters of a function or class, and the public attributes of a class."""
    public = [name for name in dir(value) if not name.startswith("_")]
    parameters = re.sub(r" at 0x\w+", "", str(inspect.signature(value)))
    return f"{parameters} {public if inspect.isclass(value) else ''}"


def configurations(work: Path) -> Section:
    """The resolved configuration of every file of the recipes, examples and claims."""
    from mmr1 import load_config

    os.environ["ORIGINAL"] = "ORIGINAL"  # a checkout, of which exact recipes read
    found: Section = {}
    for file in sorted((ROOT / "scripts").rglob("*.yaml")):
        tree = yaml.safe_load(file.read_text())
        if not isinstance(tree, Mapping) or "model" not in tree:
            continue  # of a cluster, or of a comparison
        try:
            config = load_config(file, (), command_of(file, tree))
            values = dict(flat(config.model_dump(mode="json")))
        except ValueError as error:
            values = {"refused": without_paths(str(error))}
        found[str(file.relative_to(ROOT))] = values
    return found


def command_of(file: Path, tree: Mapping[str, Any]) -> Any:
    """By the sections of the file; else by its name."""
    unnamed = "rm" if file.stem in ("rm", "first") else "sft"
    default = "train" if "algorithm" in tree else unnamed
    return next((command for command in ("iterate", "dpo", "rm") if command in tree), default)


def migrated(work: Path) -> Section:
    """Our configuration of every script and file of other projects that the tests hold."""
    found: Section = {}
    for name, file, kind, overrides in theirs(work):
        printed, refused = mmr1("migrate", file, *(f"--from={k}" for k in kind), *overrides)
        notes = [line for line in printed.splitlines() if line.startswith("#")]
        values = {"refused": printed} if refused else dict(flat(yaml.safe_load(printed)))
        found[name] = {**values, "notes": notes}
    return found


def theirs(work: Path) -> Iterator[tuple[str, Path, list[str], Sequence[str]]]:
    """The name of an example, its file, its kind and overrides."""
    config, script = work / "theirs.yaml", work / "run.sh"
    for project in ("verl", "trl", "openrlhf"):
        examples = ROOT / f"tests/migrate/examples/{project}.yaml"
        for name, keys in yaml.safe_load(examples.read_text()).items():
            config.write_text(yaml.safe_dump(keys))
            yield f"{project}: {name}", config, [kind_of(project, name)], ()
    tests = importlib.import_module("tests.migrate.test_easyr1")
    config.write_text(tests.THEIRS)
    for name, overrides in tests.SCRIPTS.items():
        yield f"easyr1: {name}", config, ["easyr1"], overrides
    (work / "zero3.yaml").write_text("num_processes: 8\n")
    for project in ("trl", "verl"):
        script.write_text(importlib.import_module(f"tests.migrate.test_{project}").SCRIPT)
        yield f"{project}: its script", script, [], ()
    tests = importlib.import_module("tests.migrate.test_r1v")
    for rest in ("grpo.py", "grpo.py --temporal true", "grpo_jsonl.py --task_type rec"):
        yield f"r1v: {rest}", tests.script(work, f"open_r1/{rest}"), [], ()


def kind_of(project: str, name: str) -> str:
    """The value of ``--from`` for an example of the tests."""
    if project == "openrlhf":
        default = "openrlhf-0.11" if name.startswith("openrlhf/") else "openrlhf-0.7"
        return name.partition(" ")[2] or default
    kind = re.search(r"/(grpo|gspo|rloo|dpo|kto|sft|reward)", name)
    return f"trl-{kind[1].replace('gspo', 'grpo')}" if kind and project == "trl" else project


def wheel(work: Path) -> Section:
    """The files of the wheel."""
    import hatchling

    build = [sys.executable, "-m", hatchling.__name__, "build", "-t", "wheel", "-d", str(work)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    names = [name for file in work.glob("*.whl") for name in zipfile.ZipFile(file).namelist()]
    return {"files": dict.fromkeys(sorted(names), "there")}


def answers(work: Path) -> Section:
    """What every row of the open table and of the answer sets is paid, and its status."""
    rows: Section = {}
    for file in sorted((ROOT / "tests/rewards/answer_sets").glob("*.jsonl")):
        for number, row in enumerate(rows_of(file)):
            completion = f"<think>so it is</think>\n<answer>{row['answer']}</answer>"
            rows[f"{file.stem} {number:02}"] = {"reward": "math", **row, "completion": completion}
    table = ROOT / "../shared/prototypes/answers/table_open.jsonl"
    found: Section = {} if table.is_file() else {"open table": {"left out": "it is not here"}}
    rows |= {row["id"]: row for row in (rows_of(table) if table.is_file() else ())}
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, row in rows.items():
        groups[row["reward"], json.dumps(row.get("options") or {}, sort_keys=True)].append(name)
    for (reward, options), names in groups.items():
        scored = scores(work, reward, json.loads(options), [rows[name] for name in names])
        found |= dict(zip(names, scored, strict=True))
    return found


def scores(work: Path, reward: str, options: Values, rows: Sequence[Values]) -> list[Values]:
    """The value and the status of these rows, by ``mmr1 reward score``."""
    section = {"rewards": {reward: options}, "scoring": {"workers": 1, "timeout_s": 60}}
    given = [
        {"completion": row["completion"], "answer": row["gold"], "group": number}
        | row.get("columns", {})
        for number, row in enumerate(rows)
    ]
    (work / "reward.yaml").write_text(json.dumps(section))
    (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    files = ("--input", work / "rows.jsonl", "--output", work / "out.jsonl")
    printed, refused = mmr1("reward", "score", "--reward", work / "reward.yaml", *files)
    if refused:
        return [{"refused": printed}] * len(rows)
    return [{"value": r["reward"], "status": r["status"]} for r in rows_of(work / "out.jsonl")]


def reward_files(work: Path) -> Section:
    """What the reward files of other projects pay for rows of those projects."""
    cases = importlib.import_module("tests.rewards.plugins.test_projects")
    cases.write_media(work)
    found: Section = {}
    for case in cases.CASES:
        given = cases.use(case.project, case.function, sandbox={"readable": [str(work)]})
        rewards = cases.score({"theirs": given}, cases.items_of(case.groups, work))
        for number, reward in enumerate(rewards):
            values = {"value": reward.value, "status": str(reward.status)}
            found[f"{case.project} {case.function} {number}"] = values
    return found


def counted_step(work: Path) -> Section:
    """FLOPs, bytes and kernels of an update of a published shape, on the stand-in device."""
    command = [sys.executable, "-m", "scripts.bench.counted_step", "--output", str(work / "out")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return {name: dict(flat(of)) for name, of in json.loads((work / "out").read_text()).items()}


def passes(work: Path) -> Section:
    """What is encoded, prefilled, decoded and learned from in a step of one group of eight."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(counted_passes, [work])


def counted_passes(work: Path) -> Section:
    """Run a step in this process, and count the calls of transformers' towers and models."""
    import digests
    import torch
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as modeling

    counts: Section = defaultdict(lambda: {"calls": 0, "tokens": 0})

    def watch(of: Any, kind: Callable[[Any], tuple[str, int]]) -> None:
        forward = of.forward

        @functools.wraps(forward)
        def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
            name, tokens = kind(inspect.signature(forward).bind(self, *args, **kwargs).arguments)
            counts[name]["calls"] += 1
            counts[name]["tokens"] += tokens
            return forward(self, *args, **kwargs)

        of.forward = counting

    def of_text(given: Any) -> tuple[str, int]:
        tokens = given["inputs_embeds"].shape[:2].numel()
        whole = "learned" if torch.is_grad_enabled() else "prefilled or scored"
        return ("decoded" if tokens <= digests.ONE_GROUP["rollout"]["n"] else whole), tokens

    def of_picture(given: Any) -> tuple[str, int]:
        return "pictures, in patches", len(given["hidden_states"])

    watch(modeling.Qwen2_5_VLTextModel, of_text)
    watch(modeling.Qwen2_5_VisionTransformerPretrainedModel, of_picture)
    digests.RUNS["passes"] = ("train", digests.ONE_GROUP)
    digests.prepare(work)
    digests.run("passes", work)
    return dict(counts)


def digests_of_runs(work: Path) -> Section:
    """Digests of small runs: completions, log-probs, weights and metrics."""
    import digests

    return dict(digests.collected(digests.RUNS))


SECTIONS: dict[str, Callable[[Path], Section]] = {
    "structure": structure,
    "help": help_tree,
    "names": public_names,
    "configurations": configurations,
    "migrated": migrated,
    "wheel": wheel,
    "answers": answers,
    "reward_files": reward_files,
    "counted_step": counted_step,
    "passes": passes,
    "digests": digests_of_runs,
}


# --- what differs --------------------------------------------------------------------------------


def collected(names: Iterable[str]) -> dict[str, Section]:
    """These sections; with the digests also the names of the metrics, which hold everywhere."""
    found: dict[str, Section] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            with tempfile.TemporaryDirectory() as work:
                section = SECTIONS[name](Path(work))
        except (ImportError, AttributeError, OSError, subprocess.CalledProcessError) as error:
            section = {name: {"left out": f"{type(error).__name__}: {error}"}}
        found[name] = json.loads(json.dumps(section, default=str))
    if "digests" in found:
        found["metrics"] = {
            run: dict.fromkeys((key for key in of if key.startswith("metric")), "logged")
            for run, of in found["digests"].items()
        }
    return found


def differences(before: Section, after: Section) -> dict[tuple[str, str, str], list[str]]:
    """Items by what differs in them: the key, its value before and its value after."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for item in before | after:
        if item not in before or item not in after:
            found["", *("there" if item in of else "-" for of in (before, after))].append(item)
            continue
        old, new = before[item], after[item]
        for key in old | new:
            values = [json.dumps(of[key]) if key in of else "-" for of in (old, new)]
            if values[0] != values[1]:
                found[key, *values].append(item)
    return dict(found)


def report(before: Mapping[str, Section], after: Mapping[str, Section], limit: int) -> list[str]:
    """Lines of at most 80 columns: for each section its differences, the most frequent first."""
    lines = []
    for name, section in after.items():
        found = differences(before.get(name, {}), section)
        count = sum(map(len, found.values()))
        reason = section.get(name, {}).get("left out")
        told = f"left out: {reason}" if reason else f"{len(section)} items, {count} differences"
        lines.append(f"{name:15} {told:.64}")
        ordered = sorted(found.items(), key=lambda pair: -len(pair[1]))
        for (key, old, new), items in ordered[:limit]:
            where = items[0] if len(items) == 1 else f"{len(items)}x, {items[0]}"
            values = "{:11.11} > {:11.11}".format(*from_the_difference(old, new))
            lines.append(f"  {where:27.27} {key:22.22} {values}".rstrip())
        if len(ordered) > limit:
            lines.append(f"  and {len(ordered) - limit} more: --only {name}")
    return lines


def from_the_difference(old: str, new: str) -> tuple[str, str]:
    """Both from shortly before the character in which they differ."""
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
    start = max(0, len(list(equal)) - 4)
    return old[start:], new[start:]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be repeated")
    aim = parser.add_mutually_exclusive_group(required=True)
    aim.add_argument("--write", type=Path, help="the file; sections that are not asked for stay")
    aim.add_argument("--compare", type=Path, help="a file that --write wrote")
    args = parser.parse_args()
    found = collected(args.only or SECTIONS)
    if args.write:
        others = json.loads(args.write.read_text()) if args.only and args.write.is_file() else {}
        args.write.write_text(json.dumps({**others, **found}, indent=1, ensure_ascii=False) + "\n")
        return 0
    before = json.loads(args.compare.read_text())
    print("\n".join(report(before, found, sys.maxsize if args.only else SHOWN)))
    return int(any(differences(before.get(name, {}), of) for name, of in found.items()))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    sys.exit(main())
