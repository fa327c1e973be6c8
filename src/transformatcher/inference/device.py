"""Name of a device → a torch device that works."""

import torch

from transformatcher.errors import InputError


def pick_device(name: str) -> torch.device:
    """``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1``, … → a device that torch can use here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception as error:  # every back end raises errors of its own
        known = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu"
        raise InputError(f"device {name!r}: torch cannot use it here; choose {known}") from error
    return device
