"""The backend is chosen for all stages at once."""

from transformatcher.config import model_config
from transformatcher.models.build import build_matcher


def test_set_backend_reaches_every_stage():
    model = build_matcher(model_config({"backbone": "resnet50"}))
    assert {model.correlation.backend, model.refiner.backend, model.readout.backend} == {"auto"}
    model.set_backend("eager")
    assert {model.correlation.backend, model.refiner.backend, model.readout.backend} == {"eager"}
