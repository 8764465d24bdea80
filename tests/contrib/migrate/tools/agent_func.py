"""An ``agent_func.py`` as it is written for OpenRLHF's ``--agent_func_path``."""

from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from PIL import Image

USER = "\n<|im_start|>user\n"
ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs):
        self.step_idx = 0

    async def reset(self, states: dict, **kwargs):
        self.begun_with = states["observation"]
        return {"observation": states["observation"]}

    async def step(self, states: dict, **kwargs) -> dict[str, Any]:
        assert states["observation_text"].startswith(self.begun_with)
        self.step_idx += 1
        done = self.step_idx == 3
        feedback = f"{USER}Turn {self.step_idx}, label {states['label']}.{ASSISTANT}"
        answer = {
            "rewards": torch.tensor([0.5]) if done else torch.tensor(0),
            "scores": torch.tensor(0.5),
            "environment_feedback": "" if done else feedback,
            "done": done,
            "sampling_params": states.get("sampling_params"),
            "extra_logs": {"turn": torch.tensor(self.step_idx)},
        }
        if self.step_idx == 2:
            answer["environment_feedback"] = f"{USER}{PICTURE}Look.{ASSISTANT}"
            answer["environment_images"] = [Image.new("RGB", (56, 28), "blue")]
        return answer


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)


class OwnLoop(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)

    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine):
        return await super().execute(
            prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine
        )


class Misuse(AgentInstance):
    """What it does wrong is the label."""

    async def reset(self, states: dict, **kwargs):
        self.wrong = states["label"]
        if self.wrong == "prompt":
            states["observation"] += " Think."
        return states

    async def step(self, states: dict, **kwargs):
        return {
            "rewards": torch.tensor(0.0),
            "environment_feedback": USER + PICTURE * (self.wrong == "picture") + ASSISTANT,
            "sampling_params": {"temperature": 0.1} if self.wrong == "sampling" else None,
            "done": False,
        }
