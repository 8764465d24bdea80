"""Optional packages: an import that fails names the extra that installs the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(extra: str, user: str) -> Iterator[None]:
    """Turn a failed import in the block into a message with the command that installs the package.

    >>> with needs_extra("report", "a plot"):
    ...     import no_such_package
    Traceback (most recent call last):
    ...
    ValueError: a plot needs no_such_package, which is not installed: pip install 'mmr1[report]'

    Args:
        extra: Extra of pyproject.toml that has the package.
        user: Command, key or function that needs it.

    Raises:
        ValueError: If the import fails.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        raise ValueError(
            f"{user} needs {package}, which is not installed: pip install 'mmr1[{extra}]'"
        ) from error
