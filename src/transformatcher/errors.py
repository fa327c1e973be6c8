"""Unusable input → one clear sentence."""

from importlib.util import find_spec


class InputError(Exception):
    """Something that the user gave cannot be used.

    The message names the file, the number and the way out. The command line prints it and exits with 2.
    """


def missing_package(purpose: str, package: str, extra: str) -> InputError:
    """The error for an optional package that is not installed.

    Example:
        >>> str(missing_package("matching a list of pairs", "pyarrow", "bulk"))
        "matching a list of pairs needs the package pyarrow: pip install pyarrow (part of the extra 'bulk')"
    """
    return InputError(f"{purpose} needs the package {package}: pip install {package} (part of the extra {extra!r})")


def require_packages(purpose: str, *packages: str, extra: str) -> None:
    """Raise an error that names the first of ``packages`` that is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise missing_package(purpose, package, extra)
