"""A shell script is read as bash would run it; bash itself says what the words are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mmr1_contrib.migrate.shell import read_script

PLAIN = r"""
#!/usr/bin/env bash
size=${SIZE:-512}   # a comment
name='it''s' ; export both="${name}_$size"
tokens=$((1024 * (2 + size / 256) - 1))
files="['a b.parquet', '$both']"
list=(
    x.y=${size}    # inside
    'z w'=1 "p q"
)
list+=(--last "$tokens")
if [ "$size" = 512 ] && [[ -n $name ]]; then list+=(then); elif true; then list+=(elif); else
    list+=(else)
fi
if [ -z "$name" ] || [ "$size" -gt 1000 ]; then list+=(never); else list+=(otherwise); fi
case "$size" in
    1|2) list+=(small) ;;
    5*)
        list+=(five)
        ;;
    *) list+=(other) ;;
esac
path=/a/b.c/model.tar
show --files="$files" \
    "${list[@]}" \
    'single $size' "a\"b" +c.d=\'${both}\' ${path##*/} ${path%.*} ${missing:-"default"} \
    "$@" 2>&1 | tee out.log
"""

DOCUMENT = r"""
read -r -d '' arguments <<EOF
train --save ./a \
   --rate 5e-7 \
   --flag
EOF
if [[ ${1} != "slurm" ]]; then
    show $arguments --tail
fi
"""


@pytest.mark.parametrize("script", [PLAIN, DOCUMENT], ids=["plain", "here-document"])
def test_the_words_are_those_of_bash(script: str, tmp_path: Path):
    if (bash := shutil.which("bash")) is None:
        pytest.skip("there is no bash")
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    show.chmod(0o755)
    finished = subprocess.run(
        [bash, "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (command,) = [words for words in read_script(script).commands if words[0] == "show"]
    assert command[1:] == finished.stdout.splitlines()


def test_what_only_a_run_could_tell_is_named():
    script = read_script(
        'DEVICE=$(probe)\ncase $DEVICE in gpu) n=8 ;; *) n=1 ;; esac\n'
        'if [ -f "$CACHE" ]; then n=9; fi\n'
        "train --n $n --data $HOME/data --name run_$(date +%d) --where ${UNSET:?no}\n"
    )  # fmt: skip
    (command,) = script.commands
    assert command == [
        "train", "--n", "8", "--data", "${oc.env:HOME}/data", "--name", "run_$(date +%d)",
        "--where", "${oc.env:UNSET}",
    ]  # fmt: skip
    notes = "\n".join(script.notes_on(command))
    for told in ("it is read as gpu", "if [ -f", "HOME is not set", "$(date +%d): only", "UNSET"):
        assert told in notes
    assert "$(probe)" not in "\n".join(script.notes_on(["train"]))


@pytest.mark.parametrize("text", ['a "b', "a $(b", "x=(1 2", "cat <<EOF\nnever"])
def test_what_never_ends_is_refused(text: str):
    with pytest.raises(ValueError, match=r"never (closed|ends)"):
        read_script(text)
