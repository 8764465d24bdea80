"""A program for ``agents.py``, which imports nothing: each of its processes would."""

TURNS = 4


async def run(client, sample) -> None:
    """Hold one conversation of ``TURNS`` requests."""
    messages = [
        {"role": "system", "content": "Be brief. " * 20},
        {"role": "user", "content": "What is in the picture? " * 10},
    ]
    for _ in range(TURNS):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        messages.append(answer.choices[0].message)
        messages.append({"role": "user", "content": "Go on, please. " * 8})
