"""Devices by name."""

import pytest

from transformatcher.errors import InputError
from transformatcher.inference.device import pick_device


def test_devices():
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(InputError, match="choose auto"):
        pick_device("gpu9")
