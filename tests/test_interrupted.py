"""Ctrl-C outside the training loop: one line and the exit code that shells expect."""

from __future__ import annotations

import sys

import pytest

from mmr1 import cli


def test_ctrl_c_is_one_line_with_exit_code_130(monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", interrupted)
    monkeypatch.setattr(sys, "argv", ["mmr1", "train", "run.yaml"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped: Ctrl-C; start the command again\n"
