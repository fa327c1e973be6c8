"""Options that several commands share."""

from transformatcher.cli.model_args import BACKBONES
from transformatcher.config import RESNETS


def test_names_that_the_parser_repeats_are_the_real_ones():
    assert RESNETS == BACKBONES
