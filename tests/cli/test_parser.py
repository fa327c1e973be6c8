"""Numbers with a range, suggestions, usage of one line."""

import argparse

import pytest

from transformatcher.cli.parser import Parser, argument_text, did_you_mean, examples, number


class TestNumber:
    @pytest.mark.parametrize(("kind", "text", "value"), [(int, "1", 1), (int, "9", 9), (float, "1e0", 1.0)])
    def test_both_ends_are_included(self, kind, text, value):
        parsed = number(kind, 1, 9)(text)
        assert parsed == value
        assert type(parsed) is kind

    @pytest.mark.parametrize("text", ["0", "10", "", "x", "1.5", "nan", "inf", "٠", "9" * 5000])
    def test_others_are_refused(self, text):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number from 1 to 9"):
            number(int, 1, 9)(text)

    def test_a_long_text_is_cut(self):
        with pytest.raises(argparse.ArgumentTypeError) as error:
            number(float, 0, 1)("9" * 5000)
        assert len(str(error.value)) < 100


def test_did_you_mean():
    assert did_you_mean("macth", ["match", "warp"]) == "; did you mean 'match'?"
    assert did_you_mean("xyz", ["match", "warp"]) == ""


class TestParser:
    @pytest.fixture
    def parser(self) -> Parser:
        parser = Parser(prog="tool", description="Does it.", epilog=examples("one", "two --size 100%"))
        parser.add_argument("src", metavar="SOURCE", help="a file")
        parser.add_argument("trg", metavar="TARGET", nargs="+", help="files")
        parser.add_argument("--size", help="how large")
        parser.add_argument("--kind", required=True, choices=("a", "b"), help="which")
        return parser

    def test_usage_names_what_must_be_given(self, parser: Parser):
        assert parser.short_usage() == "tool SOURCE TARGET [TARGET …] --kind {a,b} [options]"
        assert parser.format_usage() == f"usage: {parser.short_usage()}\n"
        assert parser.format_help().startswith(parser.format_usage())

    def test_examples_keep_their_lines(self, parser: Parser):
        wanted = "examples:\n  transformatcher one\n  transformatcher two --size 100%"
        assert parser.format_help().rstrip().endswith(wanted.replace("%", "%"))

    def test_what_looks_like_an_option_may_be_a_value(self, parser: Parser):
        args = parser.parse_args(["a", "b", "--kind", "a", "--size=--large"])
        assert args.size == "--large"
        args = parser.parse_args(["--kind", "a", "--", "--a", "--b"])
        assert (args.src, args.trg) == ("--a", ["--b"])

    def test_arguments_as_they_are_written(self):
        parser = Parser(prog="tool")
        flag = parser.add_argument("--flag", action="store_true")
        maybe = parser.add_argument("file", nargs="?")
        many = parser.add_argument("--many", nargs="*", metavar="N")
        assert [argument_text(action) for action in (flag, maybe, many)] == ["--flag", "[file]", "--many [N …]"]
