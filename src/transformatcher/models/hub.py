"""A name on the Hugging Face hub → the folder of its files in the hub's cache; fetched only if the caller says so."""

import re
from collections.abc import Sequence
from pathlib import Path

from transformatcher.errors import InputError, missing_package


def looks_like_hub_id(name: str) -> bool:
    """Whether a name has the form owner/name."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def hub_folder(
    name: str,
    files: Sequence[str],
    optional: Sequence[str] = (),
    *,
    download: bool = False,
    revision: str | None = None,
) -> Path:
    """The folder in the hub's cache that holds ``files`` of ``owner/name``.

    Args:
        name: owner/name.
        files: that must be there.
        optional: files that come along where there are any.
        download: fetch what is not in the cache; else nothing goes over the network.
        revision: a branch, tag or commit; None for the main branch.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise missing_package(f"reading {name}", "huggingface_hub", "hub") from error
    wanted = [*files, *optional]
    try:
        found = snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=not download)
    except Exception as error:  # the network, the hub and the disk have errors of their own
        if download:
            words = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{name}: could not be fetched from the Hugging Face hub ({words})") from error
        raise InputError(_not_here(name)) from error
    folder = Path(found)
    missing = [file for file in files if not (folder / file).is_file()]
    if missing and not download:
        raise InputError(_not_here(f"{name}, {', '.join(missing)}"))
    if missing:
        raise InputError(f"{name}: has no {', '.join(missing)} on the Hugging Face hub")
    return folder


def _not_here(name: str) -> str:
    return f"{name}: not in the cache of the Hugging Face hub; download=True (--download) fetches it"
