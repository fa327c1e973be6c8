"""A budget of time → every fuzz target runs for its share of it; 1 if one found something. Run by ``make fuzz``."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TARGETS = ("images", "annotations", "commands")
MEMORY_MB = 3000
INTERRUPTED = 72  # libFuzzer's word for a signal from outside


def fuzz(target: str, seconds: int, folder: Path) -> tuple[bool, str]:
    """Run one target; (whether it found nothing, a line on how it went)."""
    corpus, found = folder / target, folder / "found" / target
    found.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, HERE / f"fuzz_{target}.py", corpus,
        f"-max_total_time={seconds}", "-timeout=120", "-max_len=65536",
        f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={found}/", "-print_final_stats=1",
    ]  # fmt: skip
    log = folder / f"{target}.log"
    # the fuzzer ends without cleaning up after itself
    with log.open("wb") as file, tempfile.TemporaryDirectory() as spare:
        environment = {**os.environ, "TMPDIR": spare}
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False).returncode
    text = log.read_text(errors="replace")
    runs = re.findall(r"^(?:stat::number_of_executed_units: |Done |#)(\d+)", text, re.MULTILINE)
    cover = re.findall(r"cov: (\d+)", text)
    places = f", {cover[-1]} places reached from {cover[0]}" if cover else ""
    line = f"{target}: {runs[-1] if runs else 0} executions in {seconds} s{places}"
    if code == INTERRUPTED:
        line += "; interrupted before its time"
    elif code:
        line += f"; FOUND something (exit {code}), see {log} and {found}"
    return code == 0, line


def main() -> int:
    """Seeds, then every target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together (%(default)s)")
    parser.add_argument("--folder", type=Path, default=HERE.parents[1] / "out" / "fuzz", help="corpora, logs, findings")
    args = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed (it has wheels for Linux on x86-64): nothing was fuzzed")
        return 2
    subprocess.run([sys.executable, HERE / "seeds.py", args.folder], check=True)
    clean = True
    for target in TARGETS:
        sound, line = fuzz(target, max(args.seconds // len(TARGETS), 1), args.folder)
        print(line, flush=True)
        clean &= sound
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
