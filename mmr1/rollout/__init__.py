"""Engines that sample completions, and the weights they sample with."""
