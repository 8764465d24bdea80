"""Images, videos, boxes and pixel budgets; one file per model family."""
