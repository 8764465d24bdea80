"""The table of combinations: each row fires for a setting of its own, and for no preset."""

from __future__ import annotations

import pytest

from mmr1.config import Config
from mmr1.config.commands import COMMANDS, command_named
from mmr1.config.file import config_from, load
from mmr1.config.listing import KINDS
from mmr1.section import every_section

CHOSEN = {
    need: (f"{part.key}.type={part.name}",)
    for kind in KINDS.values()
    for part in kind.parts.values()
    for need in part.section.needs
    if need not in kind.base.needs and "NAME" not in kind.key  # several rewards are named at once
}
"""The needs of parts alone, with the override that chooses the part."""
NEEDS = dict.fromkeys(
    [
        *(need for section in every_section(Config) for need in section.needs),
        *(need for name in COMMANDS.names() for need in command_named(name).needs),
    ]
)


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.keys[0])
def test_overrides_break_each_need(need, tmp_path):
    """Its own overrides break it, and the message names its key."""
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: m}")
    overrides = [*CHOSEN.get(need, ()), *need.broken_by]
    if need.warns:
        said = "\n".join(load(path, overrides, need.command).warnings)
    else:
        with pytest.raises(ValueError, match=r".") as error:
            load(path, overrides, need.command)
        said = str(error.value)
    lines = [line for line in said.splitlines() if need.why in line]
    assert len(lines) == 1, said
    assert need.keys[0] in lines[0]


def test_a_message_has_the_values_without_credentials():
    overrides = ["algorithm.ppo_mini_batch_size=5", "data.train_batch_size=8", "rollout.n=1"]
    with pytest.raises(ValueError, match=r".") as error:
        config_from({"model": {"path": "m"}}, overrides)
    first, second = str(error.value).splitlines()
    assert "algorithm.ppo_mini_batch_size=5, data.train_batch_size=8: the first does not" in first
    assert "rollout.n=1, algorithm.advantage.type=grpo: a group of one has no baseline" in second


def test_a_row_holds_for_its_commands_only():
    one = {"model": {"path": "m"}, "rollout": {"n": 1}}
    assert config_from(one, command="eval").rollout.n == 1
