"""``mmr1 config show``, ``config diff`` and ``list``."""

from __future__ import annotations

import pytest

from mmr1.config.file import config_from
from mmr1.config.listing import KINDS, WIDTH, listing
from mmr1.config.presets import PARTS, PRESETS
from mmr1.config.show import DEFAULT, difference, values_with_origins

MODEL = {"model": {"path": "m"}}


def shown(path, overrides=()) -> dict[str, tuple[object, str]]:
    rows = values_with_origins(path, overrides, "train")
    return {key: (value, origin) for key, value, origin in rows if origin != DEFAULT}


def test_show_names_the_origin_of_each_value(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: m}\nalgorithm: {name: dapo, kl: {coef: 0.01}}\n")
    values = shown(path, ["algorithm.loss=gspo", "rollout.n=4"])
    assert values["model.path"] == ("m", "file")
    assert values["rollout.n"] == (4, "override")
    assert values["algorithm.loss.type"] == ("gspo", "override")
    assert values["algorithm.loss.agg_mode"] == ("seq-mean-token-mean", "part gspo")
    assert values["algorithm.kl.coef"] == (0.01, "file")
    assert values["algorithm.filter_groups.type"] == ("resample", "preset dapo")
    assert "seed" not in values


def test_show_of_defaults_names_the_model_alone(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: m}\nrollout: {temperature: 1.0}\n")
    assert shown(path) == {"model.path": ("m", "file")}


@pytest.mark.parametrize("name", ["dapo", "gspo", "dr_grpo", "rloo", "ppo"])
def test_preset_spelled_out_makes_no_difference(name):
    named = config_from(MODEL, [f"algorithm={name}"])
    parts = {key: dict(PRESETS[name][key]) for key in PARTS if PRESETS[name][key] is not None}
    assert list(difference(named, config_from({**MODEL, "algorithm": parts}))) == []


def test_difference_gives_a_changed_part_one_line():
    one = config_from(MODEL, ["algorithm.advantage.epsilon=0.5", "rollout.n=4"])
    other = config_from(MODEL, ["algorithm.advantage=rloo", "trainer.output_dir=elsewhere"])
    lines = {key: (before, after) for key, before, after in difference(one, other)}
    assert lines.keys() == {"algorithm.advantage", "rollout.n"}
    assert lines["algorithm.advantage"][1] == "rloo"
    assert "epsilon=0.5" in lines["algorithm.advantage"][0]


def test_list_shows_every_part_within_the_width():
    for kind, each in KINDS.items():
        assert all(name in "\n".join(listing(kind)) for name in each.parts)
        for name, part in each.parts.items():
            text = "\n".join(listing(kind, name))
            assert all(paper in text for paper in part.papers)
            assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(("kind", "name"), [("los", None), ("loss", "gspoo")])
def test_list_names_the_nearest(kind, name):
    with pytest.raises(ValueError, match="did you mean"):
        list(listing(kind, name))
