"""The wing's commands by ``mmr1.Trainer``."""

from __future__ import annotations

import pytest

from mmr1 import Trainer

PAIRS = [
    {"prompt": f"What is {number} + 1?", "chosen": str(number + 1), "rejected": "none"}
    for number in range(4)
]


@pytest.mark.parametrize("command", ["dpo", "rm"])
def test_trainer_takes_the_steps_of_a_command(command, tiny_model, tmp_path):
    config = {
        "data.train_batch_size": 2,
        "trainer.max_steps": 2,
        "trainer.output_dir": str(tmp_path / "run"),
    }
    trainer = Trainer(str(tiny_model), PAIRS, config=config, command=command)
    assert [step.number for step in trainer.steps()] == [1, 2]


def test_trainer_refuses_a_command_that_is_no_sequence_of_steps(tiny_model):
    with pytest.raises(ValueError, match=r"command=iterative-grpo: the Trainer runs dpo, rm, "):
        Trainer(str(tiny_model), PAIRS, command="iterative-grpo")
