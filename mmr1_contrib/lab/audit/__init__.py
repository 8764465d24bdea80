"""Recompute a recorded step by a road that shares nothing with the trainer.

The modules import torch, transformers, PIL and safetensors, and nothing of mmr1: their formulas are
the papers' once more. Only ``command`` knows mmr1.
"""
