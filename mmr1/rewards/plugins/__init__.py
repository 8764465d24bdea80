"""Users' reward functions: Python files, the signatures of other trainers, HTTP servers."""
