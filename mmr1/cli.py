"""``mmr1``: the command line.

An error that the user can fix is one message with exit code 2. A run that fails later ends with a
named error and exit code 1. A traceback is a bug.
"""

from __future__ import annotations

import errno
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mmr1 import __version__, start
from mmr1.config import Config
from mmr1.config.checks import check_own_parts
from mmr1.config.commands import COMMANDS, EVAL, Command, command_named
from mmr1.config.file import command_in, dump_yaml, load, load_config, refuse_masked
from mmr1.config.frequent import help_of_keys
from mmr1.config.listing import listing
from mmr1.config.run_folder import CONFIG
from mmr1.config.show import DEFAULT, difference, values_with_origins
from mmr1.contributed import HEADING, add_commands
from mmr1.logs import LogLevel, failing_output_muted, log_to_terminal, printable
from mmr1.part import written
from mmr1.progress import reporting_waits
from mmr1.recipes import app as recipe_app
from mmr1.recipes import recipes
from mmr1.reward_cli import app as reward_app
from mmr1.rewards.sandbox.processes import kept_zygotes
from mmr1.rollout.engines import preload_engine
from mmr1.trainer.preflight import check_evaluation, check_reward_names
from mmr1.trainer.runs.existing import accept_changes
from mmr1.vision.families.registry import DEFAULT_FAMILY

logger = logging.getLogger("mmr1.cli")  # also as __main__
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
model_app = typer.Typer(help="Create models.", no_args_is_help=True)
config_app = typer.Typer(help="Show and compare configurations.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.add_typer(config_app, name="config")
app.add_typer(recipe_app, name="recipe")
app.add_typer(reward_app, name="reward")

ConfigFile = Annotated[Path, typer.Argument(help="YAML configuration file")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.path=value; overrides the file")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved configuration and exit")
]

Log = Annotated[
    LogLevel,
    typer.Option("--log-level", callback=log_to_terminal, help="Of the log lines on stderr"),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume the run in trainer.output_dir, or start it")
]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="With --resume: continue with data and plugins that have changed"
    ),
]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mmr1 {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit"
        ),
    ] = False,
) -> None:
    """R1-style reinforcement learning for vision-language models."""


class _CommandWithKeys(TyperCommand):
    """A command whose help has the keys that recipes set most."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        assert self.name is not None, "it has been added under a name"
        files = (file for folder in recipes().values() for file in folder.glob("*.yaml"))
        formatter.write(help_of_keys(files, self.name))


def _add_training(command: Command) -> None:
    panel = None if command.name in COMMANDS.builtin else HEADING

    @app.command(command.name, cls=_CommandWithKeys, help=command.about, rich_help_panel=panel)
    def run(
        config: ConfigFile,
        overrides: Overrides = None,
        dry_run: DryRun = False,
        resume: Resume = False,
        accepted: AcceptChanges = False,
        log_level: Log = LogLevel.WARNING,
    ) -> None:
        resolved = _resolve(config, overrides, command.name, dry_run, resume, accepted)
        if resolved is not None:
            _run(resolved, resume)


for _name in COMMANDS.names():
    if (_command := command_named(_name)).trains:
        _add_training(_command)

add_commands("mmr1.cli", {"": app, "model": model_app, "recipe": recipe_app, "reward": reward_app})


@app.command()
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    steps: Annotated[
        int, typer.Option(min=0, help="Small steps to take on the CPU, with a tiny model")
    ] = 0,
    output: Annotated[Path, typer.Option(help="Folder of the small run, new or empty")] = Path(
        "runs/check"
    ),
    log_level: Log = LogLevel.WARNING,
) -> None:
    """Check a run before it is started: its model's contract, records and rewards."""
    loaded = load(config, overrides or [], command_in(config)).config
    with failing_output_muted(), reporting_waits():
        start.load_libraries()
        from mmr1.evaluation.check import check_run, print_result

        result = check_run(loaded, output, steps)
    print_result(result)
    raise typer.Exit(1 if result.findings else 0)


@reward_app.command("floor")
def reward_floor(
    config: ConfigFile,
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option(min=2, help="Rows of each source")] = 500,
) -> None:
    """Score answers without sense on the data and with the rewards of a run."""
    loaded = load(config, overrides or [], "train").config
    from mmr1.evaluation.floor import print_floor, read_floor

    floor = read_floor(loaded, rows)
    print_floor(floor)
    raise typer.Exit(1 if floor.findings else 0)


@app.command(EVAL.name, help=EVAL.about)
def evaluate(
    config: ConfigFile,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    log_level: Log = LogLevel.WARNING,
) -> None:
    if (resolved := _resolve(config, overrides, "eval", dry_run)) is not None:
        check_evaluation(resolved)
        preload_engine(resolved)
        with failing_output_muted(), reporting_waits():
            start.load_libraries()
            from mmr1.evaluation.benchmarks import run_evaluations
            from mmr1.evaluation.table import print_results

            results, comparisons = run_evaluations(resolved)
            print_results(results, comparisons, resolved.eval.output_dir)


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a run")],
    overrides: Overrides = None,
    before: Annotated[
        str | None, typer.Option(help="Model to compare with; default: the run's own, model.path")
    ] = None,
    log_level: Log = LogLevel.WARNING,
) -> None:
    """Show what the gain of a run is made of: prior, picture, length and format."""
    config = load(run / CONFIG, overrides or [], "eval").config
    preload_engine(config)
    with failing_output_muted(), reporting_waits():
        start.load_libraries()
        from mmr1.evaluation.gain import explain_gain, print_gain
        from mmr1.trainer.runs.checkpoint import checkpoints

        found = checkpoints(run / "checkpoints")
        if not found:
            raise ValueError(f"{run} has no checkpoint, so there is no gain to explain")
        gain = explain_gain(config, before or config.model.path, str(found[-1]))
    print_gain(gain)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a run, or of two runs to compare")],
    output: Annotated[
        Path | None, typer.Option(help="HTML file to write; default: report.html in the first run")
    ] = None,
    media_mb: Annotated[float, typer.Option(help="Megabytes for all thumbnails together")] = 12,
    live: Annotated[bool, typer.Option("--live", help="Serve the report during the run")] = False,
    port: Annotated[int, typer.Option(help="Port of the live report on 127.0.0.1; 0: any")] = 8722,
) -> None:
    """Show a run, or compare two, in one HTML file."""
    if live:
        from mmr1.report.live import serve_report

        serve_report(runs, port)
    else:
        from mmr1.report.report_command import make_report

        make_report(runs, output, round(media_mb * 1e6))


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="RUN/checkpoints/step_N")],
    output: Annotated[Path, typer.Argument(help="Folder to write")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Export the LoRA adapter only")
    ] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(help="Also upload it to this repository, such as me/my-model")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make the repository private")] = False,
) -> None:
    """Export a checkpoint as a Hugging Face model with a model card, adapters merged."""
    from mmr1.trainer.runs.export import check_repository, push
    from mmr1.trainer.runs.export import export as write

    if push_to_hub is not None:
        check_repository(push_to_hub)
    elif private:
        raise ValueError("--private is for a repository of the Hub; name it in --push-to-hub")
    typer.echo(f"written: {write(checkpoint, output, adapter=adapter)}")
    if push_to_hub is not None:
        typer.echo(f"pushed: {push(output, push_to_hub, private=private)}")


@app.command()
def doctor(
    overrides: Overrides = None,
    estimate: Annotated[
        Path | None, typer.Option(help="Estimate the memory of a run with this YAML file")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="GiB per device; default: of this machine's device")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Tokens per prompt; default: measured on data.train")
    ] = None,
    vision_tokens: Annotated[int, typer.Option(help="Vision tokens per prompt")] = 0,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="With --estimate: propose ranks and engines for so many GPUs; default: of "
            "this machine",
        ),
    ] = None,
) -> None:
    """Check this machine and the environment, with a remedy for each problem."""
    if estimate is None:
        from mmr1.doctor import run_doctor

        raise typer.Exit(0 if run_doctor() else 1)
    from mmr1.estimate.command import run_estimate
    from mmr1.estimate.load import Load

    config = load_config(estimate, overrides or [], command_in(estimate))
    load = None
    if prompt_tokens is not None:
        load = Load(prompt_tokens, vision_tokens, config.rollout.max_response_length)
    raise typer.Exit(0 if run_estimate(config, memory, load, gpus) else 1)


@app.command("list")
def list_parts(
    kind: Annotated[str | None, typer.Argument(help="Kind of part, such as loss")] = None,
    name: Annotated[str | None, typer.Argument(help="Part of that kind, such as gspo")] = None,
) -> None:
    """List the kinds of parts, the parts of a kind, or what one part takes and needs."""
    for line in listing(kind, name):
        typer.echo(line)


@config_app.command("show")
def config_show(
    config: ConfigFile,
    overrides: Overrides = None,
    everything: Annotated[bool, typer.Option("--all", help="Show defaults too")] = False,
) -> None:
    """Show the values that are not defaults, each with its origin."""
    for key, value, origin in values_with_origins(config, overrides or [], command_in(config)):
        if everything or origin != DEFAULT:
            typer.echo(f"{key:<44} {written(value):<22} {origin}")


@config_app.command("diff")
def config_diff(
    first: ConfigFile,
    second: Annotated[Path, typer.Argument(help="YAML configuration file to compare with")],
) -> None:
    """Show what two configurations do differently, whatever presets they name."""
    one, other = (load_config(path, (), command_in(path)) for path in (first, second))
    for key, before, after in difference(one, other):
        typer.echo(f"{key}\n  - {before}\n  + {after}")


@model_app.command("new")
def model_new(
    output: Annotated[Path, typer.Argument(help="Folder to write, new or empty")],
    preset: Annotated[str, typer.Option(help="tiny (0.7M parameters) or 20m (21M)")] = "tiny",
    seed: Annotated[int, typer.Option(help="Seed of the random weights")] = 0,
    family: Annotated[
        str, typer.Option(help="model_type of the model's family, as in its config.json; or text")
    ] = DEFAULT_FAMILY,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Text file that the tokenizer learns from, in place of the family's"),
    ] = None,
) -> None:
    """Create a small model with random weights, a tokenizer and a processor."""
    from mmr1.vision.families.tiny import new_model

    lines = None if corpus is None else corpus.read_text(encoding="utf-8").splitlines()
    parameters = new_model(output, preset, seed, lines, family)
    typer.echo(f"{output}: {family} {preset}, {parameters:,} parameters")


def _run(config: Config, resume: bool) -> None:
    """Run a training command, on Ray as often as ``resources.ray.max_restarts`` allows."""
    start.check_run(config, resume=resume)
    from mmr1.trainer.distributed.supervise import supervised

    with failing_output_muted(), reporting_waits():
        supervised(start.run, config, resume=resume, samples=config.samples)


def _resolve(
    path: Path,
    overrides: list[str] | None,
    command: str,
    dry_run: bool,
    resume: bool = False,
    accept: bool = False,
) -> Config | None:
    """The checked configuration, or None after ``--dry-run`` printed it."""
    loaded = load(path, overrides or [], command)
    for line in (*loaded.notes, *loaded.warnings):
        typer.echo(f"configuration: {line}", err=True)
    config = loaded.config
    check_own_parts(config)
    # Only the keys: a value may be a credential.
    keys = ", ".join(override.partition("=")[0] for override in overrides or [])
    logger.info("configuration %s with overrides %s", path, keys or "none")
    if dry_run:
        check_reward_names(config)
        typer.echo(dump_yaml(config), nl=False)
        return None
    refuse_masked(config, path)
    if accept and not resume:
        raise ValueError("--accept-changes is for a run that is resumed; add --resume")
    if accept:
        accept_changes(config)
    config, why = start.with_gpus(config, resume=resume)
    if why is not None:
        typer.echo(f"resources: auto: {why}", err=True)
    return config


def main() -> None:
    """Entry point of the console script."""
    _quiet_libraries()
    with failing_output_muted("stderr"):
        _main()


def _main() -> None:
    try:
        with kept_zygotes():  # what warmed up for the tools' schemas serves their workers too
            app()
    except ValueError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except OSError as error:
        if not _is_file_error(error):
            raise
        _say(f"error: {error}")
        sys.exit(1)
    except RuntimeError as error:
        if not type(error).__module__.startswith("mmr1."):
            raise
        if hasattr(error, "signum"):  # on request: the exit code that shells and schedulers expect
            _say(f"stopped: {error}")
            sys.exit(128 + error.signum)
        _say(f"error: {type(error).__name__}: {error}")
        sys.exit(1)
    except SystemExit as ended:
        if ended.code == 130:  # Ctrl-C outside the training loop, which answers it itself
            _say("stopped: Ctrl-C; start the command again")
        raise


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _is_file_error(error: OSError) -> bool:
    """True for a file that cannot be used, or a full disk; not for a failed connection."""
    return error.filename is not None or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _quiet_libraries() -> None:
    """Silence progress bars and notices of libraries, which would break the display.

    bitsandbytes, which peft imports if it is there, misses a package that nothing here needs.
    """
    import logging
    import os

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
