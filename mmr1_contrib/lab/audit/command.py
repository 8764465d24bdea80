"""``mmr1 audit``: recompute a step of a run, or compare two step files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mmr1_contrib.lab.audit.step_file import Finding, StepFile


def audit(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Folder of a run, or one or two step files")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Step of the run; default: the first")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration that a file of another project should follow")
    ] = None,
    hook: Annotated[
        str | None,
        typer.Option(help="Print a writer of step files for trl, verl, easyr1 or openrlhf instead"),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every difference, not only the first")
    ] = False,
) -> None:
    """Recompute a recorded step without mmr1's code, and name the first difference.

    The exit code is 0 if the step is what its configuration says, 1 if something differs, and 2 if
    it cannot be recomputed.
    """
    if hook is not None:
        typer.echo(_hook(hook), nl=False)
    else:
        raise typer.Exit(run_audit(files or (), step, config, every))


def _hook(project: str) -> str:
    from mmr1_contrib.lab.audit.hooks import HOOKS

    if project not in HOOKS:
        raise ValueError(f"--hook {project}: it knows {', '.join(HOOKS)}")
    return HOOKS[project]


def run_audit(files: Sequence[Path], step: int | None, config: Path | None, every: bool) -> int:
    """Run the command; return its exit code."""
    from mmr1_contrib.lab.audit.step_file import AuditError, read_step_file

    try:
        if len(files) == 2:
            left, right = map(read_step_file, files)
            return _compare_files(left, right, every)
        if len(files) != 1:
            raise AuditError("name a run, one step file, or two to compare")
        file, folder = _step_of(files[0], step)
        run = read_step_file(file)
        if config is not None:
            run = _by_our_configuration(run, config)
        return _audit_step(run, folder, every)
    except AuditError as error:
        typer.echo(f"error: {error}", err=True)
        return 2


def _step_of(path: Path, step: int | None) -> tuple[Path, Path | None]:
    """The step file of a run, and the run's folder."""
    from mmr1_contrib.lab.audit.step_file import AuditError

    if path.is_file():
        return path, path.parent.parent
    found = {int(file.stem.split("_")[1]): file for file in path.glob("steps/step_*.safetensors")}
    if not found:
        raise AuditError(f"{path}/steps has no step files (trainer.step_files)")
    number = min(found) if step is None else step
    if number not in found:
        known = ", ".join(map(str, sorted(found)))
        raise AuditError(f"{path} has no file of step {number}; it has {known}")
    return found[number], path


def _by_our_configuration(file: StepFile, path: Path) -> StepFile:
    """A file of another project as a step of one of our configurations.

    Its prompts are found among the rows of ``data.train``.
    """
    from mmr1.config.file import load_config, redacted
    from mmr1.data.sources import load_samples
    from mmr1.trainer.runs.step_file import messages_of
    from mmr1.vision.build import family_of
    from mmr1_contrib.lab.audit.forward import processor_of
    from mmr1_contrib.lab.audit.matching import matched, rows_of_prompts
    from mmr1_contrib.lab.audit.prompts import read_prompt
    from mmr1_contrib.lab.audit.recipe import read_recipe
    from mmr1_contrib.lab.audit.step_file import AuditError, StepFile

    config = load_config(path)
    if not isinstance(data := config.data.train, str):
        raise AuditError(f"{path}: data.train must be one source, whose rows the prompts are")
    algorithm, family = config.algorithm, family_of(config)
    coefficients = {
        "kl": algorithm.kl.coef if algorithm.kl else 0.0,
        "entropy": algorithm.entropy.coef if algorithm.entropy else 0.0,
    }
    tree = redacted(config)
    recipe, processor = read_recipe(tree, coefficients), processor_of(config.model.path)
    rows = [messages_of(s, Path()) for s in load_samples(data, config.data)]
    step = matched(file)
    read = [read_prompt(processor, row, recipe, 1.0) for row in rows]
    found = rows_of_prompts(step, read, sorted(family.placeholder_kinds))
    manifest = {
        **step.manifest,
        "config": tree,
        "weights": config.model.path,
        "coefficients": coefficients,
        "forbidden": sorted(family.forbidden_ids),
        "messages": [rows[row] for row in found],
    }
    return StepFile(step.path, step.tensors, manifest)


def _audit_step(run: StepFile, folder: Path | None, every: bool) -> int:
    import torch

    from mmr1_contrib.lab.audit.guesses import cannot_tell, guess
    from mmr1_contrib.lab.audit.recipe import read_recipe
    from mmr1_contrib.lab.audit.recompute import recompute
    from mmr1_contrib.lab.audit.step_file import AuditError, compare
    from mmr1_contrib.lab.audit.tolerances import EXACT, measured_tolerances

    start, manifest = time.perf_counter(), run.manifest
    if "config" not in manifest:
        raise AuditError(f"{run.path} has no configuration; name one of ours with --config")
    recipe = read_recipe(manifest["config"], manifest.get("coefficients", {}))
    dtype = recipe.get("model.dtype")
    own = recompute(run, recipe, folder, EXACT[dtype])
    rounded = recompute(run, recipe, folder, getattr(torch, dtype))
    tolerances = measured_tolerances(own, rounded)
    tokens = len(run.tensors["token/ids"])
    typer.echo(
        f"step {manifest.get('step')} of {manifest['config']['model']['path']}: "
        f"{len(set(run.prompts))} prompts, {len(run.lengths)} completions, {tokens} tokens"
    )
    first = _show(compare(run, own.file, tolerances), ("run", "recomputed"), every)
    for note in own.notes:
        typer.echo(f"  {note}")
    if first is None:
        typer.echo(f"the step is what its configuration says ({time.perf_counter() - start:.1f} s)")
        for what in cannot_tell(own, tolerances):
            typer.echo(f"  this step cannot tell {what}")
        return 0
    mistake = guess(first, run, own)
    typer.echo(
        f"first difference: {first.name}" + (f"; it looks like: {mistake}" if mistake else "")
    )
    return 1


def _compare_files(left: StepFile, right: StepFile, every: bool) -> int:
    from mmr1_contrib.lab.audit.matching import matched
    from mmr1_contrib.lab.audit.step_file import compare

    first, second = matched(left), matched(right)
    names = (left.path.name, right.path.name)
    names = names if names[0] != names[1] else (str(left.path), str(right.path))
    found = _show(compare(first, second), names, every)
    typer.echo("the files agree" if found is None else f"first difference: {found.name}")
    return int(found is not None)


def _show(findings: Iterable[Finding], names: tuple[str, str], every: bool) -> Finding | None:
    """Print the ladder, down to the first difference; return that."""
    marks: Mapping[str, str] = {"equal": "equal", "differs": "DIFFERS", "absent": "-"}
    first: Finding | None = None
    typer.echo(f"  {'quantity':<20} {'':<8} {'gap':>8}")
    for finding in findings:
        gap = "" if finding.gap is None else f"{finding.gap:.1e}"
        meaning = finding.meaning if finding.verdict == "differs" else ""
        step = "" if finding.step is None else f" ({finding.step + 1})"
        line = f"  {finding.name + step:<20} {marks[finding.verdict]:<8} {gap:>8}  {meaning}"
        typer.echo(line.rstrip())
        if finding.verdict == "differs":
            typer.echo(f"    {names[0]} / {names[1]}: {finding.place}")
            first = first or finding
            if not every:
                break
    return first
