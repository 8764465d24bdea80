"""The launchers are sound as far as a machine without a cluster can tell."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import yaml

from mmr1.config import Config
from mmr1.config.file import load_config
from tests.paths import REPOSITORY

LAUNCH = REPOSITORY / "scripts/launch"
SCRIPTS = sorted([*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_shell_scripts_parse(script):
    subprocess.run(["bash", "-n", script], check=True)


def test_a_launcher_without_a_task_tells_its_use():
    told = subprocess.run([LAUNCH / "ray_cluster.sh"], capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "ray_cluster.sh join HEAD_ADDRESS" in told.stderr


def test_the_templates_are_what_their_tools_read():
    sky = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    assert {"resources", "setup", "run", "num_nodes", "envs"} <= sky.keys()
    subprocess.run(["bash", "-n"], input=sky["run"], text=True, check=True)
    assert load_config(LAUNCH.parents[1] / sky["envs"]["CONFIG"]).model.path
    job = yaml.safe_load((LAUNCH / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    pods = [
        job["spec"]["rayClusterSpec"]["headGroupSpec"],
        *job["spec"]["rayClusterSpec"]["workerGroupSpecs"],
    ]
    for pod in pods:
        spec = pod["template"]["spec"]
        mounted = {m["name"] for m in spec["containers"][0]["volumeMounts"]}
        assert mounted == {v["name"] for v in spec["volumes"]}


@pytest.mark.parametrize("path", sorted(LAUNCH.iterdir()), ids=lambda p: p.name)
def test_every_key_that_a_launcher_sets_exists_and_a_killed_run_goes_on(path):
    text = path.read_text()
    assert "--resume" in text
    for section, key in re.findall(r"\b(resources|trainer)\.(\w+)=", text):
        assert key in Config.model_fields[section].annotation.model_fields


@pytest.mark.parametrize("path", sorted(LAUNCH.iterdir()), ids=lambda p: p.name)
def test_every_launcher_asks_for_a_token(path):
    text = path.read_text()
    if path.name == "kuberay.yaml":
        assert yaml.safe_load(text)["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    else:
        assert re.search(r"RAY_AUTH_MODE[=:] ?token", text)
        assert "RAY_AUTH_TOKEN" in text


def test_the_port_is_not_that_of_skypilots_own_ray():
    run = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())["run"]
    assert "6380" not in run
    assert run.count("6479") == 3


def test_a_machine_without_the_token_does_not_join(tmp_path):
    script = LAUNCH / "ray_cluster.sh"
    environment = {**os.environ, "TOKEN_FILE": str(tmp_path / "token")}
    told = subprocess.run(
        [script, "join", "10.0.0.1"], env=environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert "copy that file from the first machine" in told.stderr
