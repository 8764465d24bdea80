"""Push an exported model to the Hugging Face Hub, by huggingface_hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import HFValidationError, validate_repo_id


def check_repository(name: str) -> None:
    """Raises ValueError for what cannot be the name of a repository."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"--push-to-hub {name}: {error}") from None


def push(folder: Path, name: str, *, private: bool) -> str:
    """Upload the folder to the repository, which is made if it does not exist; returns its address.

    Raises:
        ValueError: It could not be uploaded; the folder stays as it is.
    """
    api = HfApi()
    try:
        repository = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=folder,
            commit_message=f"mmr1 export of {folder.name}",
        )
    except Exception as error:  # whatever its client's library raises
        raise ValueError(
            f"{folder} is written, but was not pushed to {name} ({type(error).__name__}: {error}); "
            f"log in with `hf auth login`, then run: hf upload {name} {folder}"
        ) from error
    return str(repository)
