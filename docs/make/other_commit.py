"""Another commit of this repository → ``pair(src, trg)`` for ``transformatcher bench --compare``.

TRANSFORMATCHER_OTHER names a checkout of the commit, such as one made by ``git worktree add ../before COMMIT``, and
OTHER_VARIANT one of ``paper``, ``released`` (random weights, ResNet-101, gets image tensors) or ``match`` (``Matcher``
with the model in the package, gets photos). It runs in a process of its own, with as many threads.
"""

import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

SERVER = """
import io, os, struct, sys
import numpy as np
sys.path.insert(0, os.path.join(os.environ["TRANSFORMATCHER_OTHER"], "src"))
import torch, transformatcher
print(transformatcher.__file__, file=sys.stderr)
torch.set_num_threads(int(sys.argv[1]))
if os.environ["OTHER_VARIANT"] == "match":
    from transformatcher import Matcher
    matcher = Matcher.from_pretrained(device="cpu")
    points = [[168, 115], [316, 136], [262, 241], [255, 70], [245, 277], [130, 215]]
    pair = lambda src, trg: matcher.match(src, trg, points).confidence
else:
    from transformatcher.config import model_config
    from transformatcher.models.build import build_matcher
    settings = {"variant": os.environ["OTHER_VARIANT"], "backbone": "resnet101", "sampler": "bilinear"}
    model = build_matcher(model_config(settings)).eval()
    pair = lambda src, trg: model(src, trg).trg_norm
while header := sys.stdin.buffer.read(8):
    data = io.BytesIO(sys.stdin.buffer.read(struct.unpack("q", header)[0]))
    src, trg = np.load(data), np.load(data)
    if os.environ["OTHER_VARIANT"] != "match":
        src, trg = torch.from_numpy(src), torch.from_numpy(trg)
    with torch.inference_mode():
        pair(src, trg)
    sys.stdout.buffer.write(b"1")
    sys.stdout.flush()
"""
_server: "list[subprocess.Popen[bytes]]" = []


def pair(src: Any, trg: Any) -> None:
    """Send both images to the other commit and wait until it has matched them."""
    if not _server:
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": ""}
        command = [sys.executable, "-c", SERVER, str(torch.get_num_threads())]
        folder = Path(os.environ["TRANSFORMATCHER_OTHER"])
        _server.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=folder)
        )
    process = _server[0]
    assert process.stdin is not None
    assert process.stdout is not None
    data = io.BytesIO()
    for image in (src, trg):
        np.save(data, np.asarray(image))
    process.stdin.write(struct.pack("q", data.tell()) + data.getvalue())
    process.stdin.flush()
    assert process.stdout.read(1) == b"1"
