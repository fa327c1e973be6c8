"""Validation sets are shared among processes, and their PCK is that of eval."""

import pytest
import torch
from helpers.training import tiny_config, write_benchmark

from transformatcher.evaluation.predict import predict_batch
from transformatcher.evaluation.scores import score
from transformatcher.models.build import build_matcher
from transformatcher.training.distributed import DistributedContext
from transformatcher.training.validation import evaluate_pck, load_validation_set, set_name

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory):
    return tiny_config(write_benchmark(tmp_path_factory.mktemp("data") / "PF-PASCAL", n_train=1, n_val=5))


def test_each_process_holds_some_batches(config):
    item = config.data.validate[0]
    whole, first, second = (
        load_validation_set(item, config.data.root, (16, 16), distributed, batch_size=2)
        for distributed in (None, DistributedContext(0, 2), DistributedContext(1, 2))
    )
    names = [[[loaded.pair.name for loaded in batch] for batch in part.batches] for part in (whole, first, second)]
    assert [len(batch) for batch in names[0]] == [2, 2, 1]
    assert names[0] == [names[1][0], names[2][0], names[1][1]]
    assert whole.n_pairs == first.n_pairs == second.n_pairs == 5
    assert whole.name == set_name(item) == "PF-PASCAL-val"


def test_pck_is_that_of_eval(config):
    torch.manual_seed(0)
    model = build_matcher(config.model)
    part = load_validation_set(config.data.validate[0], config.data.root, config.model.image_size, batch_size=2)
    pck = evaluate_pck(model, [part], CPU)["PF-PASCAL-val"]
    predictions = [prediction for batch in part.batches for prediction in predict_batch(model, batch, CPU)]
    expected = score(predictions)["pck"][part.pck_threshold]
    assert pck == pytest.approx({alpha: cell["per_pair"] for alpha, cell in expected.items()}, abs=1e-3)
