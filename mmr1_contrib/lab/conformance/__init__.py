"""Conformance of rollout engines: what each must do, checked against transformers alone."""
