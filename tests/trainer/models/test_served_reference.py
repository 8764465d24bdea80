"""A reference behind a server: what is asked, what is read, and vLLM's own server."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmr1.config.file import load_config
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.reference import ReferenceServerError, ServedReference
from mmr1.trainer.train import run_training
from tests.jsonl import read_jsonl
from tests.trainer.models.reference_server import serving, value
from tests.trainer.rl_runs import rl
from tests.vllm_server import vllm_server


def expanded(tokens: list[int], media: int, placeholder: int) -> list[int]:
    """The tokens with ``media`` of them in the place of the one placeholder."""
    place = tokens.index(placeholder)
    return [*tokens[:place], *([placeholder] * media), *tokens[place + 1 :]]


def test_it_is_asked_for_the_sampled_tokens_with_the_pictures_as_the_model_sees_them(parts):
    family, _, media, scored = parts
    groups = [s.group for s in scored]
    (placeholder,) = {i for i in groups[0].prompt.token_ids if i in family.placeholder_kinds}
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        (part,) = body["content_parts"]
        data = base64.b64decode(part["url"].removeprefix("data:image/png;base64,"))
        picture = Image.open(io.BytesIO(data))
        tokens = expanded(body["token_ids"], picture.width * picture.height // 28**2, placeholder)
        entries = [{str(t): {"logprob": value(t), "rank": 1}} for t in tokens]
        return {"prompt_logprobs": [None, *entries[1:]]}

    with serving(answer) as url:
        logprobs = ServedReference(url, ModelInputs(family, media)).logprobs(groups)
    rows = [(g, c) for g in groups for c in g.completions]
    assert sorted(body["token_ids"] for body in asked) == sorted(
        [*g.prompt.token_ids, *c.token_ids.tolist()] for g, c in rows
    )
    for row, (_, completion) in zip(logprobs, rows, strict=True):
        expected = [value(t) for t in completion.token_ids.tolist()]
        torch.testing.assert_close(row[: len(expected)], torch.tensor(expected))
        assert not row[len(expected) :].any()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"choices": []}, "no prompt_logprobs; is it vLLM with --enable-scale-out"),
        ({"prompt_logprobs": [None, {"5": {"logprob": -1.0}}]}, "as 2 tokens, which are .* here"),
    ],
)
def test_what_is_no_answer_ends_the_run(reply, message, parts, monkeypatch):
    family, _, media, scored = parts
    monkeypatch.setattr("mmr1.rewards.http.post._BACKOFF_S", 0.001)
    name = scored[0].group.prompt.sample.id
    with serving(lambda body: reply) as url:
        reference = ServedReference(url, ModelInputs(family, media))
        with pytest.raises(ReferenceServerError, match=f"'{name}'.*{message}"):
            reference.logprobs([scored[0].group])


def test_a_log_prob_that_is_none(parts, monkeypatch):
    family, _, media, scored = parts
    monkeypatch.setattr("mmr1.rewards.http.post._BACKOFF_S", 0.001)
    inputs = ModelInputs(family, media)
    (of_group,) = inputs.of([scored[0].group])

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        completion = len(body["token_ids"]) - len(scored[0].group.prompt.token_ids)
        return {"prompt_logprobs": [None] * (len(of_group.prompt_ids) + completion)}

    with serving(answer) as url, pytest.raises(ReferenceServerError, match="hold 'None' for a to"):
        ServedReference(url, inputs).logprobs([scored[0].group])


def test_what_a_server_cannot_be():
    keys = (
        "model.path=a",
        "algorithm.kl.coef=1",
        "algorithm.kl.reference.type=server",
        "algorithm.kl.reference.url=http://u:pw@host:8000",
    )
    assert load_config(None, [*keys]).algorithm.reference_is_served
    with pytest.raises(ValueError, match=r"algorithm\.kl\.reference") as error:
        load_config(None, [*keys, "algorithm.kl.type=full"])
    assert "pw" not in str(error.value)
    with pytest.raises(ValueError, match="a server gives log-probs at temperature 1") as error:
        load_config(None, [*keys, "rollout.temperature=0.7"])
    assert "pw" not in str(error.value)


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    log = tmp_path_factory.mktemp("server") / "log"
    with vllm_server(tiny_model, log, "--enable-scale-out") as url:
        yield url


@pytest.mark.slow
@pytest.mark.vllm
def test_vllms_server_scores_as_the_model_itself(server, parts):
    family, model, media, scored = parts
    inputs = ModelInputs(family, media)
    groups = [s.group for s in scored]
    served = ServedReference(server, inputs).logprobs(groups)
    # vLLM's log-probs of a prompt are over the whole vocabulary, forbidden tokens included.
    own = completion_scores(model, inputs.of(groups)).logprobs
    torch.testing.assert_close(served, own.detach(), atol=2e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.vllm
def test_a_run_with_a_teacher_behind_vllms_server(server, tiny_model, digits, tmp_path):
    """The policy's own start: they differ by the forbidden tokens' share at first."""
    config = rl(tiny_model, digits, tmp_path / "run")
    teacher = {"type": "server", "url": server}
    algorithm = {"name": "on_policy_distillation", "advantage": {"teacher": teacher}}
    run_training(config.changed(algorithm=algorithm))
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert rows[0]["kl"] < 1e-3
    assert all(row["kl"] > 0 for row in rows[1:])
