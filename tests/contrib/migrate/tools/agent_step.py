"""An ``agent_func.py`` of OpenRLHF's older form: a function, whose state is the module's."""

from typing import Any

step_idx = 0
max_steps = 2


async def step(observation, action, label, **kwargs) -> dict[str, Any]:
    global step_idx
    step_idx += 1
    done = step_idx >= max_steps
    reward = float(label) if done else 0.0
    asked = (
        "" if done else f"\n<|im_start|>user\nAgain, {step_idx}.<|im_end|>\n<|im_start|>assistant\n"
    )
    return {
        "rewards": reward,
        "scores": reward,
        "next_observation": observation + action + asked,
        "done": done,
        "sampling_params": kwargs.get("sampling_params"),
        "extra_logs": {"dummy_scores": reward},
    }
