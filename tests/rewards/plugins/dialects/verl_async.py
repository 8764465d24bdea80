"""verl: one solution, awaited."""

import asyncio


async def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    await asyncio.sleep(0.01)
    return float(f"<answer>{ground_truth}</answer>" in solution_str)
