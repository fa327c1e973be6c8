"""Results in order, a few ahead of their use; errors in their turn; threads that end."""

import threading
import time

import pytest

from transformatcher.data.prefetch import Prefetcher, batched, prefetch


class TestPrefetch:
    @pytest.mark.parametrize("threads", [1, 4])
    def test_all_items_in_order(self, threads: int):
        def slow_for_small(number: int) -> int:
            time.sleep(0.001 * (10 - number))
            return 10 * number

        assert list(prefetch(slow_for_small, range(10), ahead=5, threads=threads)) == list(range(0, 100, 10))
        assert list(prefetch(slow_for_small, range(3), ahead=0)) == [0, 10, 20]
        assert list(prefetch(slow_for_small, [], ahead=2)) == []

    def test_so_many_are_begun_ahead(self):
        begun: list[int] = []
        enough = threading.Event()

        def work(number: int) -> int:
            begun.append(number)
            if len(begun) == 3:
                enough.set()
            return number

        read: list[int] = []
        stream = prefetch(work, (read.append(number) or number for number in range(6)), ahead=2)
        assert next(stream) == 0
        assert enough.wait(5)  # two more are made while the first is in use
        assert read == [0, 1, 2]  # and no others are read yet
        assert [0, *stream] == begun == list(range(6))

    def test_an_error_is_raised_in_its_turn(self):
        def work(number: int) -> float:
            return 1 / number

        stream = prefetch(work, [1, 2, 0, 4], ahead=3, threads=2)
        assert [next(stream), next(stream)] == [1, 0.5]
        with pytest.raises(ZeroDivisionError):
            next(stream)

    def test_an_error_of_the_items_themselves(self):
        def items():
            yield 1
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            list(prefetch(abs, items(), ahead=2))

    def test_closing_ends_the_threads_and_what_waits(self):
        before, done = threading.active_count(), []
        stream = prefetch(lambda number: (time.sleep(0.01), done.append(number)), range(100), ahead=50)
        next(stream)
        stream.close()
        assert threading.active_count() == before
        assert len(done) < 10


class TestPrefetcher:
    def test_results_by_key(self):
        calls: list[str] = []
        with Prefetcher(lambda name: (calls.append(name), name.upper())[1], threads=1) as results:
            results.start(1, "a")
            results.start(2, "b")
            results.start(1, "a")  # is pending already
            assert [results.take(2), results.take(1)] == ["B", "A"]
            results.start(1, "a")  # was taken
            assert results.take(1) == "A"
        assert calls == ["a", "b", "a"]

    def test_errors_are_raised_where_the_result_is_taken(self):
        with Prefetcher(int, threads=1) as results:
            results.start("x", "not a number")
            results.start("y", "7")
            with pytest.raises(ValueError, match="not a number"):
                results.take("x")
            assert results.take("y") == 7


def test_batched():
    assert list(batched(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(batched([], 2)) == []
