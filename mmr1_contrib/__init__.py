"""Wings of mmr1: rooms beside the core that register themselves by entry points."""
