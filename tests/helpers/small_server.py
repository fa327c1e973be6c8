"""The page with a small random matcher, on a free port; says the address. Run by hammer.py.

With the word "hasty" behind it, it loses patience sooner than the real one, so that a test need not wait for that.
"""

import sys

from transformatcher.config import model_config
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher
from transformatcher.web import security as guard
from transformatcher.web import timeouts as patience
from transformatcher.web.server import serve

if __name__ == "__main__":
    if "hasty" in sys.argv:
        guard.GRACE_S, patience.QUIET_S, patience.STUCK_S = 1.0, 2.0, 3.0
    config = model_config({"variant": "raw", "backbone": "resnet50", "stages": [2], "image_size": [96, 96]})
    serve(Matcher(build_matcher(config), config, "cpu"), port=0, browser=False)
