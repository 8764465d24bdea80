"""Credentials of a configuration: used, and written nowhere."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import yaml

from mmr1.config import Config
from mmr1.config.file import dump_yaml, load_config, read_written, redacted, write_yaml
from mmr1.config.secrets import mask_text, redact
from mmr1.report.report_command import make_report
from mmr1.trainer.runs.existing import changed_keys

SECRET = "hunter2-very-secret"
FILE = """
model: {path: a}
data: {train: rows.jsonl}
rewards:
  judge:
    type: remote
    url: ["http://%s@judge.example:1/score", "http://%s@b.example/?api_key=%s&n=2"]
    headers: {Authorization: "Bearer %s"}
"""
HEADERS = "rewards.judge.headers.Authorization"


@pytest.fixture
def clear(tmp_path: Path) -> Path:
    """A configuration whose credentials stand in clear."""
    path = tmp_path / "clear.yaml"
    path.write_text(FILE % (f"me:{SECRET}", SECRET, SECRET, SECRET))
    return path


@pytest.fixture
def referring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with its credentials in the environment."""
    monkeypatch.setenv("JUDGE", SECRET)
    path = tmp_path / "referring.yaml"
    path.write_text(FILE % ("me:${oc.env:JUDGE}", *["${oc.env:JUDGE}"] * 3))
    return path


def test_what_is_given_in_clear_is_used_and_masked_where_it_is_written(clear):
    config = load_config(clear)
    judge = config.rewards["judge"]
    assert judge.headers == {"Authorization": f"Bearer {SECRET}"}
    assert judge.url[0] == f"http://me:{SECRET}@judge.example:1/score"
    text = dump_yaml(config)
    assert SECRET not in text
    first, rest = text.split("\n", 1)
    assert first.startswith("# ")
    assert HEADERS in first
    assert "${oc.env:NAME}" in first
    written = yaml.safe_load(rest)["rewards"]["judge"]
    assert written["headers"] == {"Authorization": "***"}
    assert written["url"] == [
        "http://***@judge.example:1/score",
        "http://***@b.example/?api_key=***&n=2",
    ]


def test_what_comes_from_the_environment_stays_a_reference(referring, monkeypatch, tmp_path):
    config = load_config(referring)
    text = dump_yaml(config)
    assert SECRET not in text
    assert not text.startswith("#")
    assert "Bearer ${oc.env:JUDGE}" in text
    (tmp_path / "again.yaml").write_text(text)
    monkeypatch.setenv("JUDGE", "another")
    again = load_config(tmp_path / "again.yaml").rewards["judge"]
    assert again.headers == {"Authorization": "Bearer another"}
    assert again.url[0] == "http://me:another@judge.example:1/score"


def test_a_whole_address_and_a_default_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_URL", f"http://me:{SECRET}@judge.example")
    monkeypatch.delenv("UNSET", raising=False)
    monkeypatch.setenv("SEED", "7")
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {path: a}\nseed: ${oc.env:SEED}\n"
        "rewards: {judge: {type: remote, url: '${oc.env:JUDGE_URL}', "
        f"headers: {{apiKey: '${{oc.env:UNSET,{SECRET}}}', other: '${{oc.env:JUDGE_URL}}'}}}}}}\n"
    )
    tree = redacted(load_config(path))
    assert SECRET not in json.dumps(tree)
    judge = tree["rewards"]["judge"]
    assert judge["url"] == judge["headers"]["other"] == "${oc.env:JUDGE_URL}"
    assert judge["headers"]["apiKey"] == "${oc.env:UNSET}"
    assert tree["seed"] == 7  # no credential: the value that the run had


def test_no_key_of_our_own_is_taken_for_a_credential():
    config = Config(
        model={"path": "a"},
        data={"train": {"token": 1.0, "b.jsonl": 2.0}},
        rewards={"secret": {"type": "math", "weight": 2.0}},
        rollout={"max_response_length": 5},
    )
    whole = config.model_dump(mode="json")
    assert redacted(config) == {key: whole[key] for key in config.sections}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://a:b@h1/x,https://c:d@h2", "http://***@h1/x,https://***@h2"),
        ("https://user:p@ss@host/path", "https://***@host/path"),
        ("http://${oc.env:U}:${oc.env:P}@host", "http://${oc.env:U}:${oc.env:P}@host"),
        ("http://u:p@${oc.env:HOST}", "http://***@${oc.env:HOST}"),
        ("http://h/?key=abc&split=train", "http://h/?key=***&split=train"),
        (
            "https://h/x?X-Amz-Signature=ab&X-Amz-Date=1",
            "https://h/x?X-Amz-Signature=***&X-Amz-Date=1",
        ),
        ("write to me@home.example", "write to me@home.example"),
    ],
)
def test_credentials_in_addresses(text, shown):
    assert mask_text(text) == shown


def test_every_kind_of_value_under_a_secret_key_is_masked():
    options = {"password": 1234, "my-token": ["a", "b"], "secret": {"x": "y"}, "n_tokens": 3}
    options |= {"pwd": "a", "auth": ["me", "b"], "cookies": {"session": "c"}, "author": "d"}
    assert redact({"options": {**options, "api_key": None, "keys": "a"}}) == {
        "options": {
            "password": "***",
            "my-token": ["***", "***"],
            "secret": {"x": "***"},
            "n_tokens": 3,
            "api_key": None,
            "keys": "a",
            "pwd": "***",
            "auth": ["***", "***"],
            "cookies": {"session": "***"},
            "author": "d",
        }
    }


def test_only_the_owner_may_read_a_file_that_has_credentials(clear, referring, tmp_path):
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    for source in (clear, referring):
        target = tmp_path / "written.yaml"
        target.write_text("before")
        target.chmod(0o644)
        write_yaml(target, load_config(source))
        assert mode(target) == 0o600
    write_yaml(tmp_path / "plain.yaml", Config(model={"path": "a"}))
    assert mode(tmp_path / "plain.yaml") & 0o400
    (tmp_path / "plain.txt").touch()
    assert mode(tmp_path / "plain.yaml") == mode(tmp_path / "plain.txt")


def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    target = tmp_path / "config.yaml"
    target.write_text("before")

    def fail(descriptor: int) -> None:
        assert target.read_text() == "before"
        raise OSError("no space")

    monkeypatch.setattr("mmr1.files.os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_yaml(target, Config(model={"path": "a"}))
    assert target.read_text() == "before"


def test_resuming_needs_no_credential_to_compare(clear, referring, tmp_path, monkeypatch):
    for source in (clear, referring):
        config = load_config(source)
        write_yaml(tmp_path / "config.yaml", config)
        for now in (clear, referring):
            assert changed_keys(read_written(tmp_path / "config.yaml"), load_config(now)) == []
        other = load_config(source, ["rewards.judge.url=http://other.example"])
        before = read_written(tmp_path / "config.yaml")
        assert changed_keys(before, other) == ["rewards.judge.url"]
    monkeypatch.delenv("JUDGE")
    assert changed_keys(read_written(tmp_path / "config.yaml"), load_config(clear)) == []


def test_a_masked_configuration_is_not_run(clear, tmp_path, mmr1):
    write_yaml(tmp_path / "config.yaml", load_config(clear))
    code, _, message = mmr1("train", tmp_path / "config.yaml")
    assert code == 2
    assert HEADERS in message
    assert "${oc.env:NAME}" in message


def test_dry_run_and_errors_mask(clear, mmr1):
    code, out, _ = mmr1("train", clear, "--dry-run")
    assert code == 0
    assert SECRET not in out
    assert "***" in out
    wrong = f"rewards.judge.headers=[http://me:{SECRET}@h]"
    code, out, message = mmr1("train", clear, wrong, "--dry-run")
    assert code == 2
    assert "rewards.judge.headers" in message
    assert SECRET not in out + message


def test_a_report_masks_what_an_older_run_wrote_in_clear(clear, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(clear.read_text())
    make_report([run], None, 0)
    page = (run / "report.html").read_text()
    assert SECRET not in page
    assert "judge.example" in page


ANY_KEY = """
seed: ${oc.env:SEED}
model: {path: "${oc.env:MODEL}", dtype: "${oc.env:DTYPE}"}
data: {train: "${oc.env:ROWS}"}
rewards:
  theirs: {type: remote, url: "https://judge.example/score?code=${oc.env:CODE}"}
  mine:
    type: own.py:reward
    openai_key: "${oc.env:A}"
    bearer: "${oc.env:B}"
    pat: "x ${oc.env:C}"
    hooks: ["${oc.env:HOOK}"]
"""
HIDDEN = ("Ka-1111", "Kb-2222", "Kc-3333", "https://hooks.example/T0/B1/Kd-4444", "Ke-5555")


def test_what_comes_from_the_environment_is_a_reference_whatever_its_key(tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("")
    given = dict(zip(("A", "B", "C", "HOOK", "CODE"), HIDDEN, strict=True))
    plain = {"SEED": "7", "MODEL": "org/model", "DTYPE": "float32", "ROWS": str(rows)}
    for name, value in {**given, **plain}.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "any.yaml"
    file.write_text(ANY_KEY)
    config = load_config(file)
    assert config.rewards["mine"].settings["openai_key"] == "Ka-1111"
    write_yaml(tmp_path / "config.yaml", config)
    text = (tmp_path / "config.yaml").read_text()
    assert not [value for value in HIDDEN if value in text]
    assert stat.S_IMODE((tmp_path / "config.yaml").stat().st_mode) == 0o600
    assert not [value for value in HIDDEN if value in json.dumps(redacted(config))]
    again = load_config(tmp_path / "config.yaml")
    assert again == config
    # Numbers, choices and paths that are there are no credentials: they can be read and compared.
    for name in (*given, *plain):
        monkeypatch.delenv(name)
    written = read_written(tmp_path / "config.yaml")
    assert (written.seed, written.model.dtype, written.data.train) == (7, "float32", str(rows))
    assert changed_keys(written, config) == []


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ("{a: '${oc.env:KEY}', b: '${.a}'}", "${oc.env:KEY}"),
        ("{a: '${oc.env:KEY}', b: '${rewards.f.a}'}", "${oc.env:KEY}"),
        ("{a: 'x ${oc.env:KEY}', b: '<${.a}>'}", "<x ${oc.env:KEY}>"),
        ("{a: {x: '${oc.env:KEY}'}, b: '${.a}'}", {"x": "${oc.env:KEY}"}),
        ("{a: ['${oc.env:KEY}'], b: '${.a.0}'}", "${oc.env:KEY}"),
        ("{b: '${oc.create:[\"${oc.env:KEY}\"]}'}", ["${oc.env:KEY}"]),
        ("{a: '${oc.env:KEY}', b: '${oc.select:rewards.f.a}'}", "${oc.env:KEY}"),
        ("{b: '${ oc.env : KEY }'}", "${oc.env:KEY}"),
        ("{b: '${oc.env:${oc.env:NAME_OF_IT}}'}", "${oc.env:${oc.env:NAME_OF_IT}}"),
        ("{a: NAME_OF_IT, b: '${oc.env:${.a}}'}", "${oc.env:${.a}}"),
        ("{a: plain, b: '${.a}'}", "plain"),
    ],
)
def test_a_value_by_another_key_is_the_reference_that_stands_there(
    options, written, tmp_path, monkeypatch
):
    monkeypatch.setenv("KEY", SECRET)
    monkeypatch.setenv("NAME_OF_IT", "KEY")
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {path: a}\ndata: {train: rows.jsonl}\n"
        f"rewards: {{f: {{type: 'own.py:f', {options[1:-1]}}}}}\n"
    )
    config = load_config(path)
    text = dump_yaml(config)
    assert SECRET not in text
    shown = yaml.safe_load(text)["rewards"]["f"]["b"]
    assert shown == written
    path.write_text(text)
    assert load_config(path).rewards["f"].settings == config.rewards["f"].settings
