"""A list of pairs → pairs a second by one process, by two, and by two workers on Ray; in turns, on two cores.

    python docs/make/bulk_speed.py DATA [--before COMMIT]

DATA holds SPair-71k. Each worker has one thread. A rate is that of the last three quarters of all files, so that
loading the model and starting Ray do not count. With --before, the one-process path of another commit is timed in the
same run.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
SIZE = 4  # pairs in a file


def write_list(data: Path, folder: Path, pairs: int) -> list[Path]:
    """The list as a whole, and its two halves."""
    files = sorted((data / "SPair-71k" / "PairAnnotation" / "val").glob("*.json"))[:: 360 // pairs][:pairs]
    rows = []
    for file in files:
        note = json.loads(file.read_text())
        points = ";".join(f"{x},{y}" for x, y in note["src_kps"])
        rows.append([*(f"{note['category']}/{note[name]}" for name in ("src_imname", "trg_imname")), points])
    lists = []
    for name, part in (("all", rows), ("one", rows[: pairs // 2]), ("two", rows[pairs // 2 :])):
        lists.append(folder / f"{name}.csv")
        with lists[-1].open("w", newline="") as out:
            csv.writer(out).writerows([("src", "trg", "keypoints"), *part])
    return lists


def command(pairs: Path, out: Path, root: Path, *options: str) -> list[str]:
    """What matches a list."""
    common = ["--root", str(root), "--shard-size", str(SIZE), "--device", "cpu", *options]
    return [sys.executable, "-m", "transformatcher", "match-pairs", str(pairs), "--out", str(out), *common]


def start(words: list[str], source: Path | None = None) -> subprocess.Popen[bytes]:
    """Start it, with the package of another folder if one is given."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(source)} if source else {})
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def rate(outs: list[Path]) -> float:
    """Pairs a second, after the first quarter of the files."""
    times = sorted(file.stat().st_mtime for out in outs for file in out.glob("part-*.parquet"))
    first = len(times) // 4
    return (len(times) - 1 - first) * SIZE / (times[-1] - times[first])


def main() -> None:
    """Time all kinds in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", help="a commit to compare the one-process path with")
    args = parser.parse_args()
    photos = args.data.resolve() / "SPair-71k" / "JPEGImages"
    with TemporaryDirectory() as name:
        folder = Path(name)
        whole, *halves = write_list(args.data, folder, args.pairs)
        old = folder / "before"
        if args.before:
            subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "-q", old, args.before], check=True)
            for built in (ROOT / "src/transformatcher/models/fused").glob("libpasses.*"):
                (old / built.relative_to(ROOT)).write_bytes(built.read_bytes())

        def one(out: Path) -> float:
            finish([start(command(whole, out, photos, "--threads", "1"))])
            return rate([out])

        def two(out: Path) -> float:
            outs = [out / "one", out / "two"]
            finish([start(command(half, o, photos, "--threads", "1")) for half, o in zip(halves, outs, strict=True)])
            return rate(outs)

        def ray(out: Path) -> float:
            finish([start(command(whole, out, photos, "--engine", "ray", "--workers", "2"))])
            return rate([out])

        def before(out: Path) -> float:
            text = whole.read_text().splitlines()  # names were relative to the list
            absolute = [
                text[0],
                *(
                    ",".join(f"{photos}/{n}" for n in line.split(",", 2)[:2]) + "," + line.split(",", 2)[2]
                    for line in text[1:]
                ),
            ]
            (folder / "absolute.csv").write_text("\n".join(absolute))
            words = command(folder / "absolute.csv", out, photos, "--threads", "1")
            del words[words.index("--root") : words.index("--root") + 2]
            finish([start(words, old / "src")])
            return rate([out])

        kinds: dict[str, Callable[[Path], float]] = {"one process": one, "two processes": two, "two on Ray": ray}
        if args.before:
            kinds[f"one process, {args.before}"] = before
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(args.rounds):
            for kind, run in kinds.items():
                rates[kind].append(run(folder / f"{kind} {number}"))
                print(f"{kind}: {rates[kind][-1]:.2f} pairs/s", flush=True)
        print({kind: round(median(values), 2) for kind, values in rates.items()})
        if args.before:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", old], check=True)


def finish(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for processes that must succeed."""
    for process in processes:
        _, problem = process.communicate()
        assert process.returncode == 0, problem.decode()[-2000:]


if __name__ == "__main__":
    main()
