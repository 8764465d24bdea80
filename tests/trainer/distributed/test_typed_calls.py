"""Calls to ranks and engines are functions: mypy sees a method that was renamed."""

from __future__ import annotations

import re
import sys
from subprocess import run

import pytest

from tests.paths import REPOSITORY

pytest.importorskip("mypy", reason="mypy is not installed")

CALLS = """
from collections.abc import Sequence

from mmr1.rollout.transfer import ReceivingEngine
from mmr1.trainer.distributed.all_ranks import AllRanks
from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.rank_actor import Rank
from mmr1.trainer.distributed.ray_calls import Actor
from mmr1.trainer.distributed.ray_engines import RayEngines
from mmr1.trainer.models.critic import LocalCritic
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.training_models import TrainingModels
from mmr1.types import Experience


def calls(
    ranks: AllRanks[TrainingModels], rank: Actor[Rank], engines: RayEngines, parts: list[Experience]
) -> None:
    critic = ranks.part(lambda models: models.critic)
    critic.each(LocalCritic.learn, parts, None)
    critic.each(LocalCritic.renamed, parts, None)  # error: has no attribute "renamed"
    critic.each(LocalCritic.learn, [1, 2], None)  # error: Cannot infer value
    critic.each(LocalCritic.learn, parts, "line")  # error: incompatible type
    critic.each(LocalPolicy.update, parts)  # error: incompatible type
    ranks.part(lambda models: models.critics)  # error: has no attribute "critics"
    rank.start(Rank.make_room, True)
    rank.start(Rank.made_room, True)  # error: has no attribute "made_room"
    rank.start(Rank.make_room)  # error: Too few arguments
    rank.start(Engine.cancel)  # error: incompatible type
    engines.call(Engine.rest)
    engines.call(Engine.load)  # error: Too few arguments
    engines.call(ReceivingEngine.started)  # error: has no attribute "started"
"""


@pytest.mark.slow
def test_a_renamed_method_fails_the_type_check(tmp_path):
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    config = ["--config-file", "pyproject.toml", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *config, str(file)]
    answer = run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    expected = {
        number: line.partition("# error: ")[2]
        for number, line in enumerate(CALLS.splitlines(), 1)
        if "# error: " in line
    }
    found = dict(re.findall(r"calls\.py:(\d+): error: (.*)", answer.stdout))
    assert sorted(map(int, found)) == sorted(expected), answer.stdout + answer.stderr
    for number, words in expected.items():
        assert words in found[str(number)]
