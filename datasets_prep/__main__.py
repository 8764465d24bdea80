"""``python -m datasets_prep``."""

from datasets_prep.cli import main

main()
