"""What differs between model families: processor, positions, media tokens."""
