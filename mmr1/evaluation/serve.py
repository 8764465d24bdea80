"""``mmr1 rollout serve``: a policy behind OpenAI's API, like a run's for agent programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from mmr1.config import AgentConfig, Config
from mmr1.progress import report_activity
from mmr1.rollout.build import agent_engine, assemble
from mmr1.rollout.engines import EngineSetting, engine_type
from mmr1.trainer.models.loading import load_model
from mmr1.vision.build import family_of, media_cache


def serve_policy(config: Config, port: int, say: Callable[[str], None]) -> None:
    """Serve ``model.path`` with the run's engine and sampling until Ctrl-C.

    Raises:
        ValueError: The configuration has no agent program.
    """
    if not isinstance(config.environment, AgentConfig):
        raise ValueError(
            "a policy is served for agent programs, and the configuration has none; set "
            "environment={type: agent, use: my_agent.py:run}"
        )
    family = family_of(config)
    media = media_cache(family, config)
    with TemporaryDirectory(prefix="mmr1-serve-") as folder:
        with report_activity("starting the rollout engine"):
            model = load_model(config.model) if engine_type(config).samples_from_policy else None
            log = Path(folder) / "engine.log"
            built = assemble(EngineSetting(config, family, media, model, None, log))
        served = agent_engine(
            config, built.rollout, built.turns, family, media, serving=True, port=port
        )
        with closing(served) as engine:
            say(f"OPENAI_BASE_URL={engine.server.base_url}")
            say("Any OPENAI_API_KEY names an episode. Ctrl-C ends the server.")
            with suppress(KeyboardInterrupt):
                engine.serve(config.rollout.sampling)
            for key, (turns, count) in engine.conversations().items():
                say(f"{key}: {turns} turn(s) in {count} conversation(s)")
