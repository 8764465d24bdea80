"""Images, videos, boxes and pixel budgets; model families in ``families/``."""
