"""Predictions with known errors."""

from transformatcher.evaluation.predict import Prediction


def prediction(name: str = "p", category: str = "cat", error: float = 0.0, **changes: object) -> Prediction:
    """Two keypoints, the second found ``error`` pixels to the right of where it is; the target is 200 × 100."""
    fields = {
        "name": name, "category": category, "src_size": [100, 200], "trg_size": [100, 200], "kp_index": [0, 1],
        "src_kps": [[1.0, 1.0], [2.0, 2.0]], "trg_kps": [[20.0, 20.0], [120.0, 60.0]],
        "pred_kps": [[20.0, 20.0], [120.0 + error, 60.0]], "peak": [1.0, 1.0],
        "trg_bbox": [10.0, 10.0, 130.0, 70.0], "difficulty": {},
    }  # fmt: skip
    return Prediction(**(fields | changes))
