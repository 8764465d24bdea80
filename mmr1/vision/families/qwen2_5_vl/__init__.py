"""Qwen2.5-VL (arXiv 2502.13923)."""
