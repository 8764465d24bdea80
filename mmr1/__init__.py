"""R1-style reasoning RL for vision-language models."""

__version__ = "0.1.0"
