"""Qwen2-VL (arXiv 2409.12191), Qwen2.5-VL (arXiv 2502.13923), Qwen3-VL (arXiv 2511.21631)."""
