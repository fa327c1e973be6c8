"""The page's server with a small random model, on a free port; prints its address. Started by load_client.py."""

import argparse

from transformatcher.config import model_config
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher
from transformatcher.web import security, server
from transformatcher.web.session import Limits

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--upload-grace", type=float, default=security.UPLOAD_GRACE_S)
    parser.add_argument("--connections", type=int, default=server.MAX_CONNECTIONS)
    parser.add_argument("--pixels", type=int, default=Limits().pixels)
    args = parser.parse_args()
    security.UPLOAD_GRACE_S, server.MAX_CONNECTIONS = args.upload_grace, args.connections
    config = model_config({"variant": "raw", "backbone": "resnet50", "stages": [2], "image_size": [96, 96]})
    server.serve(
        Matcher(build_matcher(config), config, "cpu"), port=0, limits=Limits(pixels=args.pixels), browser=False
    )
