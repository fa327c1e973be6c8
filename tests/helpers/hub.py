"""A Hugging Face cache on disk, as huggingface_hub would have left it."""

from pathlib import Path

COMMIT = "0" * 40


def write_cache(root: Path, name: str, files: dict[str, Path]) -> Path:
    """Files of ``owner/name`` → the folder that huggingface_hub finds them in, its cache being ``root``."""
    model = root / f"models--{name.replace('/', '--')}"
    folder = model / "snapshots" / COMMIT
    folder.mkdir(parents=True, exist_ok=True)
    (model / "refs").mkdir(exist_ok=True)
    (model / "refs" / "main").write_text(COMMIT)
    for file, source in files.items():
        (folder / file).write_bytes(source.read_bytes())
    return folder
