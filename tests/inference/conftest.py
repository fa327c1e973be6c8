"""A photo to match."""

import numpy as np
import pytest

from transformatcher.data.synthetic import synthetic_pair


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    image = synthetic_pair(3, size=(120, 200))[0].src_image
    assert isinstance(image, np.ndarray)
    return image
