"""torch.hub → the matcher: ``torch.hub.load("OWNER/REPOSITORY", "transformatcher")``."""

import sys
from pathlib import Path
from typing import Any

dependencies = ["torch", "numpy", "scipy", "PIL", "safetensors", "einops", "pydantic", "jaxtyping"]

_SOURCE = str(Path(__file__).parent / "src")
if _SOURCE not in sys.path:  # the package lies in the repository; what it imports when first used must be found, too
    sys.path.insert(0, _SOURCE)


def transformatcher(pretrained: bool = True, device: str = "auto", **settings: Any) -> Any:
    """A matcher: ``.match(src, trg, keypoints)`` finds points of one photo on another; ``.model`` is the nn.Module.

    Args:
        pretrained: the model that comes with the repository; else one with random weights.
        device: "auto" takes a GPU where there is one.
        settings: keys of transformatcher.ModelConfig. Of the trained model, those of its input and read-out.
    """
    from transformatcher import Matcher, build_matcher, model_config
    from transformatcher.inference.calibration import load_calibration
    from transformatcher.inference.checkpoint import SHIPPED, load_checkpoint

    if pretrained:
        return Matcher(*load_checkpoint(SHIPPED, settings), device, load_calibration(SHIPPED))
    config = model_config(settings)
    return Matcher(build_matcher(config), config, device)
