"""Tools as they are written for verl."""

from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class AnswerTool(BaseTool):
    """Tells whether an answer is right, and asks 0.1 for each further try."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instance_dict = {}

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(
        self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs
    ) -> tuple[str, ToolResponse]:
        if instance_id is None:
            instance_id = str(uuid4())
        if ground_truth is None:
            ground_truth = kwargs.get("create_kwargs", {}).get("ground_truth", None)
        self._instance_dict[instance_id] = {"truth": ground_truth, "tries": 0, "right": False}
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs
    ) -> tuple[ToolResponse, float, dict]:
        state = self._instance_dict[instance_id]
        state["tries"] += 1
        broken = {"text": "bad", "nan": float("nan")}  # rewards that are none
        if parameters["answer"] in broken:
            return ToolResponse(text="?"), broken[parameters["answer"]], {}
        if parameters["answer"] == "alone":
            return ToolResponse(text="?")
        state["right"] = str(parameters["answer"]) == state["truth"]
        text = f"{self.config['prefix']} {state['right']}, try {state['tries']}"
        return ToolResponse(text=text), -0.1 * (state["tries"] > 1), {"tries": state["tries"]}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        return float(self._instance_dict[instance_id]["right"])

    async def release(self, instance_id: str, **kwargs) -> None:
        del self._instance_dict[instance_id]


class CropTool(BaseTool):
    """Crops the conversation's first picture."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
        agent_data = kwargs["agent_data"]
        cropped = agent_data.image_data[0].crop(tuple(parameters["bbox_2d"]))
        return ToolResponse(image=[cropped], text=f"of {len(agent_data.image_data)}"), 0.0, {}


class Film(BaseTool):
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
        return ToolResponse(video=["frames"]), 0.0, {}
