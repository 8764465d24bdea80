from __future__ import annotations

from hypothesis import settings

settings.register_profile("rewards", deadline=None)  # first calls import scipy and sympy
settings.load_profile("rewards")
