"""The import contracts of pyproject.toml fail for each import that they are there to forbid."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

LAYERS = "Layers of the packages"
CORE = "The core imports no wing"
WINGS = "No wing imports another"
AUDIT = "The audit shares nothing with what it audits"
TRAINER = "Layers of the trainer"
ESTIMATE = "Layers of the estimate"
REWARDS = "Layers of the rewards"
RAY = "Only the distributed trainer imports ray"
VLLM = "Only the vLLM engine imports vllm"
TORCH = "Rewards and the configuration load no torch"
WINGS = "No wing imports another"
RECORDS = "Records and the report import no torch"
CONTRACTS = [
    contract["name"]
    for contract in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]["contracts"]
]

# The contract, the file, and the import that is planted in it.
PLANTS = [
    (LAYERS, "mmr1/types.py", "import mmr1.registry"),
    (LAYERS, "mmr1/attention.py", "import mmr1.config"),
    (LAYERS, "mmr1/config/tree.py", "import mmr1.vision.budget"),
    (LAYERS, "mmr1/rewards/http_server.py", "import mmr1.config"),
    (LAYERS, "mmr1/vision/images.py", "import mmr1.data.record"),
    (LAYERS, "mmr1/data/record.py", "import mmr1.trainer.algorithm"),
    (LAYERS, "mmr1/data/record.py", "import mmr1.rollout.protocol"),
    (LAYERS, "mmr1/rollout/hf.py", "import mmr1.trainer.models.policy"),
    (LAYERS, "mmr1/trainer/loop.py", "import mmr1.report.page"),
    (LAYERS, "mmr1/report/page.py", "import mmr1.evaluation.table"),
    (LAYERS, "mmr1/evaluation/table.py", "import mmr1.cli"),
    (LAYERS, "mmr1/cli.py", "import datasets_prep.make"),
    (CORE, "mmr1/types.py", "import mmr1_contrib"),
    (CORE, "mmr1/start.py", "from mmr1_contrib.offline import dpo"),
    (CORE, "datasets_prep/completions.py", "import mmr1_contrib.offline.rankings"),
    (WINGS, "mmr1_contrib/other.py", "import mmr1_contrib.offline.sections"),
    (CORE, "mmr1/cli.py", "import mmr1_contrib.agents.engine"),
    (CORE, "datasets_prep/conversion.py", "import mmr1_contrib.agents.sections"),
    (WINGS, "mmr1_contrib/agents/engine.py", "import mmr1_contrib.offline.sections"),
    (WINGS, "mmr1_contrib/offline/commands.py", "import mmr1_contrib.agents.sections"),
    (CORE, "mmr1/cli.py", "import mmr1_contrib.migrate.cli"),
    (CORE, "datasets_prep/conversion.py", "import mmr1_contrib.migrate.command"),
    (WINGS, "mmr1_contrib/migrate/source.py", "import mmr1_contrib.offline.sections"),
    (WINGS, "mmr1_contrib/offline/commands.py", "import mmr1_contrib.migrate.source"),
    (AUDIT, "mmr1_contrib/lab/audit/formulas.py", "import mmr1.algorithms.ratios"),
    (CORE, "mmr1/cli.py", "import mmr1_contrib.lab.compare.command"),
    (CORE, "datasets_prep/conversion.py", "import mmr1_contrib.lab.compare.statistics"),
    (WINGS, "mmr1_contrib/lab/compare/plan.py", "import mmr1_contrib.offline.sections"),
    (WINGS, "mmr1_contrib/offline/commands.py", "import mmr1_contrib.lab.compare.statistics"),
    (LAYERS, "mmr1/algorithms/kl.py", "import mmr1.rollout.protocol"),
    (TRAINER, "mmr1/trainer/algorithm.py", "import mmr1.trainer.runs.output"),
    (TRAINER, "mmr1/trainer/forward/scores.py", "import mmr1.trainer.models.policy"),
    (TRAINER, "mmr1/trainer/models/policy.py", "import mmr1.trainer.runs.output"),
    (TRAINER, "mmr1/trainer/runs/output.py", "import mmr1.trainer.sampling.replay"),
    (TRAINER, "mmr1/trainer/sampling/replay.py", "import mmr1.trainer.distributed.cluster"),
    (TRAINER, "mmr1/trainer/validation/statistics.py", "import mmr1.trainer.distributed.cluster"),
    (TRAINER, "mmr1/trainer/distributed/cluster.py", "import mmr1.trainer.components"),
    (TRAINER, "mmr1/trainer/components.py", "import mmr1.trainer.loop"),
    (TRAINER, "mmr1/trainer/loop.py", "import mmr1.trainer.train"),
    (TRAINER, "mmr1/trainer/train.py", "import mmr1.trainer.sft"),
    (TRAINER, "mmr1/trainer/unplaced.py", ""),
    (ESTIMATE, "mmr1/estimate/gpus.py", "import mmr1.estimate.shapes"),
    (ESTIMATE, "mmr1/estimate/shapes.py", "import mmr1.estimate.load"),
    (ESTIMATE, "mmr1/estimate/load.py", "import mmr1.estimate.memory"),
    (ESTIMATE, "mmr1/estimate/memory.py", "import mmr1.estimate.advice"),
    (ESTIMATE, "mmr1/estimate/advice.py", "import mmr1.estimate.proposal"),
    (ESTIMATE, "mmr1/estimate/unplaced.py", ""),
    (REWARDS, "mmr1/rewards/item.py", "import mmr1.rewards.sandbox.pool"),
    (REWARDS, "mmr1/rewards/sandbox/pool.py", "import mmr1.rewards.reading.extract"),
    (REWARDS, "mmr1/rewards/reading/latex.py", "import mmr1.rewards.plugins.columns"),
    (REWARDS, "mmr1/rewards/math/equality.py", "import mmr1.rewards.builtin.math"),
    (REWARDS, "mmr1/rewards/builtin/text.py", "import mmr1.rewards.plugins.columns"),
    (REWARDS, "mmr1/rewards/plugins/columns.py", "import mmr1.rewards.functions"),
    (REWARDS, "mmr1/rewards/functions.py", "import mmr1.rewards.composite"),
    (REWARDS, "mmr1/rewards/composite.py", "import mmr1.rewards.http_server"),
    (REWARDS, "mmr1/rewards/unplaced.py", ""),
    (RAY, "mmr1/trainer/models/policy.py", "import ray"),
    (RAY, "mmr1/rollout/protocol.py", "from ray.util import queue"),
    (RAY, "datasets_prep/conversion.py", "import ray"),
    (VLLM, "mmr1/trainer/models/optimizer.py", "import vllm"),
    (VLLM, "mmr1/rollout/engine_process.py", "from vllm import LLM"),
    (TORCH, "mmr1/rewards/builtin/text.py", "import torch"),
    (TORCH, "mmr1/config/tree.py", "from torch import nn"),
    (TORCH, "mmr1/registry.py", "import transformers"),
    (TORCH, "mmr1/rewards/reading/latex.py", "import mmr1.attention"),
    (RECORDS, "mmr1/report/page.py", "import torch"),
    (RECORDS, "mmr1/data/record.py", "import transformers"),
    (TORCH, "mmr1/types.py", "import torch"),
    (TORCH, "mmr1/lifetime.py", "import torch"),
]
LINT = (
    "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages and their configuration in a folder of their own."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    for package in ("mmr1", "mmr1_contrib", "datasets_prep"):
        unneeded = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, folder / package, ignore=unneeded)
    return folder


def broken_contracts(folder: Path) -> list[str]:
    """The contracts that ``lint-imports`` finds broken; it reads the packages in its folder."""
    run = subprocess.run([sys.executable, "-c", LINT], cwd=folder, capture_output=True, text=True)
    verdicts = re.findall(r"^(.+) (KEPT|BROKEN)", run.stdout, re.MULTILINE)
    assert [name for name, _ in verdicts] == CONTRACTS, run.stdout + run.stderr
    broken = [name for name, verdict in verdicts if verdict == "BROKEN"]
    assert run.returncode == bool(broken)
    return broken


def lint_with(folder: Path, file: str, planted: str) -> list[str]:
    """The contracts that are broken while ``planted`` stands at the end of ``file``."""
    path = folder / file
    before = path.read_bytes() if path.exists() else None
    path.write_bytes((before or b"") + planted.encode())
    try:
        return broken_contracts(folder)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


def test_the_code_as_it_is_keeps_every_contract(copy: Path) -> None:
    assert broken_contracts(copy) == []


@pytest.mark.parametrize(("contract", "file", "statement"), PLANTS)
def test_a_forbidden_import_breaks_its_contract(
    copy: Path, contract: str, file: str, statement: str
) -> None:
    assert lint_with(copy, file, f"\n{statement}\n") == [contract]


@pytest.mark.parametrize(
    ("contract", "file", "statement"),
    [plant for plant in PLANTS if plant[0] in (CORE, WINGS, RAY, VLLM, TORCH, RECORDS)],
)
def test_an_import_inside_a_function_counts(
    copy: Path, contract: str, file: str, statement: str
) -> None:
    assert lint_with(copy, file, f"\n\ndef planted():\n    {statement}\n") == [contract]


def test_an_import_for_types_alone_is_free(copy: Path) -> None:
    planted = "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
    assert lint_with(copy, "mmr1/registry.py", planted) == []


def test_every_contract_has_imports_that_break_it() -> None:
    assert {contract for contract, _, _ in PLANTS} == set(CONTRACTS)
