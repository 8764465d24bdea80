"""Tools and environments that were written for other trainers; runs in the sandbox."""
