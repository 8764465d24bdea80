"""``python -m datasets_prep``."""

from datasets_prep.data_cli import main

if __name__ == "__main__":  # worker processes import this module under another name
    main()
