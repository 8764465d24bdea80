"""What the page holds, read back out of the file; a browser looks at it in test_browser.py."""

from __future__ import annotations

import base64
import io
import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image

from datasets_prep.generators.video import moving_square, write_mp4
from mmr1.report import live
from mmr1.report.content import box_reader
from mmr1.report.page import write_report
from mmr1.report.run_reader import open_run, read_lines
from mmr1.report.thumbnails import SIDES, Medium, fitting_side, thumbnail
from tests.report.elements import element, unpacked
from tests.report.run_files import HOSTILE, completion, image, prompt, write_run
from tests.report.serving import serving


def report(tmp_path, *folders, media_bytes: int = 10**6) -> str:
    target = tmp_path / "report.html"
    write_report([open_run(f) for f in folders], target, media_bytes)
    return target.read_text()


def test_the_page_holds_the_run(tmp_path):
    group = prompt(
        "a", [completion(HOSTILE), completion("6", None)], media=[image(tmp_path / "x.png")]
    )
    dropped = {"row": "rows.jsonl:3", "reason": "<img src=x onerror=alert(1)>"}
    html = report(tmp_path, write_run(tmp_path / "run", {2: [group]}, quarantined=[dropped]))
    summary = json.loads(element(html, "summary"))
    (run,) = summary["runs"]
    assert run["metrics"]["reward/mean"] == [0.25, 0.5, 0.75, 1.0]
    assert run["config"]["trainer.max_steps"] == 4
    assert run["quarantined"] == [dropped]
    (row,) = unpacked(html, "rollouts-0-2")
    assert [c["text"] for c in row["completions"]] == [HOSTILE, "6"]
    assert row["completions"][1]["status"] == "timeout"
    (digest,) = row["media"]
    picture = json.loads(element(html, f"media-{summary['blocks'][digest]}"))[digest]
    assert (picture["width"], picture["height"]) == (200, 100)


def test_nothing_from_data_is_markup_and_nothing_is_fetched(tmp_path):
    group = prompt("</script><script>alert(1)</script>", [completion(HOSTILE)], task="<b>")
    row = {"row": "<!--", "reason": "</script><script>alert(2)</script>"}
    folder = write_run(tmp_path / "<b>run", {1: [group]}, quarantined=[row])
    html = report(tmp_path, folder)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert len(scripts) == html.count("<script>") == 8  # the package's own files
    assert "<b>run" not in html
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", html)
    assert "connect-src 'none'" in html


def test_the_faults_of_a_run_are_those_of_its_summary(tmp_path, mmr1):
    faults = {"engine/died": 2, "tracker/</script><b>": 1}
    met, none = write_run(tmp_path / "met", {}, faults=faults), write_run(tmp_path / "none", {})
    older = write_run(tmp_path / "older", {})
    (older / "summary.json").unlink()
    html = report(tmp_path, met, none)
    assert "</script><b>" not in html
    assert [run["faults"] for run in json.loads(element(html, "summary"))["runs"]] == [faults, {}]
    (run,) = json.loads(element(report(tmp_path, older), "summary"))["runs"]
    assert run["faults"] == {}
    (met / "summary.json").write_text('{"state": "runn')
    code, _, message = mmr1("report", met)
    assert code == 2
    assert "summary.json: not JSON" in " ".join(message.split())


def test_equal_runs_give_equal_files(tmp_path):
    folder = write_run(tmp_path / "run", {1: [prompt("a", [completion("7")])]})
    assert report(tmp_path, folder) == report(tmp_path, folder)


def test_a_picture_is_kept_once(tmp_path):
    shared = image(tmp_path / "shared.png")
    rollouts = {s: [prompt(f"{s}", [completion("7")], media=[shared])] for s in (1, 2, 3)}
    folder = write_run(tmp_path / "run", rollouts)
    assert report(tmp_path, folder, folder).count("data:image/webp") == 1


def test_a_picture_that_is_gone_says_so(tmp_path):
    gone = {**image(tmp_path / "gone.png"), "path": "not/there.png"}
    html = report(tmp_path, write_run(tmp_path / "run", {1: [prompt("a", [], media=[gone])]}))
    assert "not/there.png" in json.loads(element(html, "media-0"))[gone["digest"]]["missing"]


def test_thumbnails_shrink_until_they_fit(tmp_path):
    noise = Image.effect_noise((640, 480), 80).convert("RGB")
    noise.save(tmp_path / "noise.png")
    media = [Medium(str(i), "image", tmp_path / "noise.png", {}) for i in range(50)]
    whole = len(thumbnail(media[0], SIDES[0])["frames"][0])
    assert fitting_side(media, 50 * whole) == SIDES[0]
    smaller = fitting_side(media, 50 * whole // 4)
    assert smaller < SIDES[0]
    assert 50 * len(thumbnail(media[0], smaller)["frames"][0]) <= 50 * whole // 4


@pytest.mark.parametrize(
    ("options", "run", "times"),
    [
        ({"fps": 2.0}, {"video": {"fps": 1.0}}, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]),
        ({}, {"video": {"fps": 1.0}}, [0.0, 1.0, 2.5, 3.5]),
        ({"start": 1.0, "end": 2.5}, {}, [1.0, 1.5, 2.0, 2.5]),
    ],
)
def test_frames_are_those_that_the_model_was_shown(tmp_path, options, run, times):
    frames, fps = moving_square(np.random.default_rng(0), "left")
    write_mp4(tmp_path / "v.mp4", frames, fps)  # eight frames, two a second
    clip = {"kind": "video", "path": str(tmp_path / "v.mp4"), "digest": "ab", "options": options}
    folder = write_run(tmp_path / "run", {1: [prompt("a", [], media=[clip])]}, data=run)
    shown = json.loads(element(report(tmp_path, folder), "media-0"))["ab"]
    assert shown["times"] == times
    assert len(shown["frames"]) == len(times)


def test_a_small_picture_keeps_every_pixel(tmp_path):
    Image.effect_noise((12, 8), 80).convert("RGB").save(tmp_path / "small.png")
    (frame,) = thumbnail(Medium("d", "image", tmp_path / "small.png", {}), 320)["frames"]
    shown = Image.open(io.BytesIO(base64.b64decode(frame.split(",")[1]))).convert("RGB")
    assert shown.tobytes() == Image.open(tmp_path / "small.png").tobytes()


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        # The model saw 100 x 50 pixels of an image of 200 x 100.
        ({"iou": {"space": "resized"}}, [[20.0, 20.0, 100.0, 80.0]]),
        ({"place": {"type": "iou", "space": "0-1000"}}, [[2.0, 1.0, 10.0, 4.0]]),
        ({"auto": {"options": {"iou": {"space": "original"}}}}, [[10.0, 10.0, 50.0, 40.0]]),
        ({"math": {}}, [[10.0, 10.0, 50.0, 40.0]]),
    ],
)
def test_boxes_are_read_as_the_reward_reads_them(tmp_path, functions, expected):
    answer = "<think>[0, 0, 9, 9]</think><answer>[10, 10, 50, 40]</answer>"
    group = prompt(
        "a",
        [completion(answer), completion("none")],
        answer=[[20, 20, 100, 80]],
        task="grounding",
        media=[image(tmp_path / "x.png", (200, 100), seen=[100, 50])],
    )
    html = report(tmp_path, write_run(tmp_path / "run", {1: [group]}, functions=functions))
    (row,) = unpacked(html, "rollouts-0-1")
    assert row["gold"] == [[20.0, 20.0, 100.0, 80.0]]
    assert [c["boxes"] for c in row["completions"]] == [expected, []]


def test_other_tasks_have_no_boxes():
    assert not box_reader({"rewards": {"math": {}}}).applies({"task": "math"})


def test_a_line_that_is_still_being_written_waits(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": ')
    assert list(read_lines(tmp_path / "x.jsonl")) == [{"a": 1}]


def test_damage_is_named(tmp_path, mmr1):
    folder = write_run(tmp_path / "run", {1: [prompt("a", [])]})
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step"\n')
    code, _, message = mmr1("report", folder)
    assert code == 2
    assert "metrics.jsonl:2: not JSON" in message
    assert not (folder / "report.html").exists()
    code, _, message = mmr1("report", tmp_path)
    assert code == 2
    assert "not the directory of a run" in message


def test_the_command_writes_beside_the_run(tmp_path, mmr1):
    folder = write_run(tmp_path / "run", {1: [prompt("a", [completion("7")])]})
    code, output, _ = mmr1("report", folder)
    assert code == 0
    assert str(folder / "report.html") in output.replace("\n", "")
    assert unpacked((folder / "report.html").read_text(), "rollouts-0-1")[0]["id"] == "a"


def get(address: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        return answer.read().decode()


def test_live_shows_what_the_run_adds(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "SETTLED_S", 0.0)
    shown = image(tmp_path / "x.png")
    folder = write_run(tmp_path / "run", {1: [prompt("a", [completion("7")], media=[shown])]})
    with serving(folder) as address:
        assert json.loads(element(get(f"{address}/"), "summary"))["live"] is True
        assert json.loads(get(f"{address}/summary"))["runs"][0]["steps"] == [1]
        (group,) = json.loads(get(f"{address}/rollouts/0/1"))
        assert json.loads(get(f"{address}/media/{group['media'][0]}"))["width"] == 200
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 5, "reward/mean": 0.9}\n')
        assert json.loads(get(f"{address}/summary"))["runs"][0]["metrics"]["step"][-1] == 5


def test_live_serves_nothing_else_and_nobody_else(tmp_path):
    with serving(write_run(tmp_path / "run", {})) as address:
        for path in ("/config.yaml", "/../run/config.yaml", "/media/00", "/rollouts/7/1"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(address + path)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(f"{address}/summary", Host="evil.example")
