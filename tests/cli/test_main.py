"""The command as a person meets it: help, typos, exit codes."""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command import run

from transformatcher.cli.main import COMMANDS, build_parser, main
from transformatcher.cli.parser import EXAMPLES, Parser

HEAVY = {"torch", "numpy", "matplotlib", "scipy", "PIL", "pydantic", "rich"}  # what help and typos do not wait for


def refused(*argv: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2


def leaf_parsers(parser: Parser) -> Iterator[Parser]:
    """The parsers of all commands."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for child in group.choices.values():
            yield from leaf_parsers(child)
    if not groups:
        yield parser


LEAVES = list(leaf_parsers(build_parser()))


class TestHelp:
    @pytest.mark.parametrize("words", [[], ["analyse"], ["data"]])
    def test_a_bare_command_prints_its_help(self, words, capsys):
        assert main(words) == 2
        printed = capsys.readouterr().err
        assert printed.startswith(f"usage: {' '.join(['transformatcher', *words])} COMMAND [options]\n")
        names = [words_.split()[-1] for words_, _, _ in COMMANDS if words_.split()[:-1] == words]
        assert all(re.search(rf"^    {name} ", printed, re.MULTILINE) for name in names)

    @pytest.mark.parametrize("words", [words for words, _, _ in COMMANDS])
    def test_every_command_explains_itself(self, words, capsys):
        with pytest.raises(SystemExit) as stopped:
            main([*words.split(), "--help"])
        assert stopped.value.code == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"usage: transformatcher {words}")
        assert max(map(len, printed.partition(EXAMPLES)[0].splitlines()[1:])) <= 80

    @pytest.mark.parametrize("parser", LEAVES, ids=lambda parser: parser.prog)
    def test_no_argument_without_help(self, parser: Parser):
        assert [action.dest for action in parser._actions if not action.help] == []

    @pytest.mark.parametrize("parser", LEAVES, ids=lambda parser: parser.prog)
    def test_examples_are_commands(self, parser: Parser):
        lines = (parser.epilog or "").removeprefix(EXAMPLES).splitlines()
        for line in lines:
            program, *words = shlex.split(line)
            args = build_parser().parse_args(words)
            assert (program, f"transformatcher {args.command}") == ("transformatcher", parser.prog)

    def test_options_of_match_are_grouped(self, capsys):
        with pytest.raises(SystemExit):
            main(["match", "--help"])
        printed = capsys.readouterr().out
        headings = re.findall(r"^(\w+):$", printed, re.MULTILINE)
        assert headings == ["arguments", "options", "pictures", "model", "run", "examples"]
        assert re.search(r"SOURCE +the photo", printed)
        assert re.search(r"TARGET +another photo", printed)

    @pytest.mark.parametrize(
        "argv",
        [
            [],
            ["--help"],
            ["match", "--help"],
            ["analyse", "overlap", "--help"],
            ["macth"],
            ["match", "a", "b", "--keypoint", "1"],
            ["serve", "--port", "99999"],
        ],
        ids=" ".join,
    )
    def test_answers_do_not_wait_for_large_libraries(self, argv):
        code = (
            "import sys\nfrom transformatcher.cli.main import main\n"
            f"try: main({argv!r})\nexcept SystemExit: pass\n"
            f"sys.exit(', '.join({HEAVY!r} & set(sys.modules)) or 0)"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr


class TestTypos:
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["macth"], "transformatcher: unknown command 'macth'; did you mean 'match'?"),
            (["evaluate"], "transformatcher: unknown command 'evaluate'; did you mean 'eval'?"),
            (["evla"], "transformatcher: unknown command 'evla'; did you mean 'eval'?"),
            (["xyz"], "transformatcher: unknown command 'xyz'; choose from match, match-pairs, warp"),
            (["analyse", "overlop"], "transformatcher analyse: unknown command 'overlop'; did you mean 'overlap'?"),
            (["match", "a", "b", "--keypoint", "1"], "unknown option --keypoint; did you mean '--keypoints'?"),
            (["match", "a", "b", "--keypionts=1,2"], "unknown option --keypionts; did you mean '--keypoints'?"),
            (["match", "a", "b", "--heat", "x.png"], "unknown option --heat; did you mean '--heatmap'?"),
            (["--verson"], "transformatcher: unknown option --verson; did you mean '--version'?"),
            (["analyse", "--hlep"], "transformatcher analyse: unknown option --hlep; did you mean '--help'?"),
            (["eval", "--benchmrk", "spair"], "unknown option --benchmrk; did you mean '--benchmark'?"),
            (["eval", "--benchmark", "spiar"], "--benchmark: not a choice: 'spiar'; did you mean 'spair'?"),
            (["eval", "--benchmark", "x"], "--benchmark: not a choice: 'x'; choose from spair, spair-u"),
            (["match", "a", "b", "--out", "x.png", "c"], "unexpected argument: c; files and folders go before"),
            (["demo", "x"], "transformatcher demo: unexpected argument: x\n"),
            (["match", "a"], "required: TARGET"),
        ],
    )
    def test_usage_and_one_sentence(self, argv, message, capsys):
        refused(*argv)
        printed = capsys.readouterr().err
        assert message in printed
        usage, _, help_line = printed.splitlines()
        assert usage.startswith("usage: transformatcher")
        assert help_line.startswith("See 'transformatcher")


class TestRanges:
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["serve", "--port", "99999"], "--port: '99999' is not a whole number from 0 to 65535"),
            (["serve", "--port", "-1"], "--port: '-1' is not a whole number"),
            (["match", "a", "b", "--threads", "99999"], "--threads: '99999' is not a whole number from 1 to 1024"),
            (["match", "a", "b", "--batch", "9" * 30], f"--batch: '{'9' * 30}' is not a whole number from 1 to"),
            (["match", "a", "b", "--batch", "9" * 9000], "…' is not a whole number from 1 to"),
            (["match", "a", "b", "--batch", "two"], "--batch: 'two' is not a whole number"),
            (["match", "a", "b", "--batch", "1.5"], "--batch: '1.5' is not a whole number"),
            (["eval", "--batch", "0"], "--batch: '0' is not a whole number from 1"),
            (["eval", "--limit", "0"], "--limit: '0' is not a whole number from 1"),
            (["eval", "--seed", "-1"], "--seed: '-1' is not a whole number from 0"),
            (["eval", "--alpha", "nan"], "--alpha: 'nan' is not a number from 0.0001 to 1"),
            (["eval", "--alpha", "0.1", "2"], "--alpha: '2' is not a number from 0.0001 to 1"),
            (["propagate", "a.json", "b", "--threshold", "7"], "--threshold: '7' is not a number from 0 to 1"),
            (["ablate", "x", "--seeds", "1", str(2**32)], "is not a whole number from 0 to 4294967295"),
        ],
    )
    def test_numbers_out_of_range(self, argv, message, capsys):
        refused(*argv)
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize("parser", LEAVES, ids=lambda parser: parser.prog)
    def test_no_number_without_a_range(self, parser: Parser):
        assert [action.dest for action in parser._actions if action.type in (int, float)] == []


class TestErrors:
    def message(self, error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys) -> str:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr("transformatcher.cli.demo.run", fail)
        assert run("demo") == 2
        return capsys.readouterr().err

    def test_what_the_system_refuses_is_one_sentence(self, spair_root: Path, raw, capsys, monkeypatch):
        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied", "somewhere/else")

        monkeypatch.setattr("transformatcher.cli.match.load_matcher", refuse)
        image = spair_root / "JPEGImages" / "cat" / "a.jpg"
        assert run("match", image, image, *raw) == 2
        assert capsys.readouterr().err == "transformatcher match: somewhere/else: cannot be used (Permission denied)\n"

    @pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")])
    def test_out_of_memory(self, error, monkeypatch, capsys):
        wanted = "transformatcher demo: out of memory; choose a smaller --batch or image_size\n"
        assert self.message(error, monkeypatch, capsys) == wanted

    def test_an_error_without_a_file(self, monkeypatch, capsys):
        assert self.message(OSError("disk full"), monkeypatch, capsys) == "transformatcher demo: disk full\n"

    def test_a_bug_is_one_sentence_and_another_exit_code(self, monkeypatch, capsys):
        def fail(*_: object) -> None:
            raise RuntimeError("shape mismatch\n\x1b[31m")

        monkeypatch.setattr("transformatcher.cli.demo.run", fail)
        assert run("demo") == 70
        printed = capsys.readouterr().err
        assert printed == (
            "transformatcher demo: an error of transformatcher itself (RuntimeError: shape mismatch\\n\\x1b[31m); "
            "the same command with --debug shows where. Please report it\n"
        )
        assert run("demo", "--debug") == 70
        printed = capsys.readouterr().err
        assert printed.startswith("Traceback")
        assert 'in fail\n    raise RuntimeError("shape mismatch' in printed

    def test_names_are_printed_so_that_they_cannot_change_the_terminal(self, capsys):
        assert run("match", "a\x1b[31m\nb.jpg", "b.jpg") == 2
        assert capsys.readouterr().err == "transformatcher match: a\\x1b[31m\\nb.jpg: no such image file\n"
        with pytest.raises(SystemExit):
            run("match", "a", "b", "--out", "p.png", "c\n\udce9" + "d" * 5000)
        _usage, message, _hint = capsys.readouterr().err.splitlines()
        assert "c\\n\\udce9" in message
        assert len(message) < 800

    @pytest.mark.parametrize("word", ["a\0b", "\ud800"])
    def test_characters_that_no_file_name_has(self, word, capsys):
        for words in (["demo", "--out", word], ["match", word, "b"], [word], ["report", word, "--out", "a.html"]):
            assert run(*words) == 2
            assert (
                capsys.readouterr().err
                == f"transformatcher: the argument {word!r} holds a character that no text has\n"
            )

    def test_interrupted(self, monkeypatch, capsys):
        with pytest.raises(AssertionError):
            self.message(KeyboardInterrupt(), monkeypatch, capsys)
        assert capsys.readouterr().err == "\ninterrupted\n"
