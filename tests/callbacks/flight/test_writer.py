"""Writes on a thread: in order, waited for, and their errors are not lost."""

from __future__ import annotations

import time
from functools import partial

import pytest

from retrotape.callbacks.flight._writer import Writer


def slowly(done, number):
    time.sleep(0.01)
    done.append(number)


def test_a_flush_waits_for_all_writes_in_order():
    writer, done = Writer(), []
    for number in range(8):
        writer.put(partial(slowly, done, number))
    writer.flush()
    assert done == list(range(8))
    writer.close()


def test_closing_waits_too_and_may_be_repeated():
    writer, done = Writer(), []
    writer.put(partial(slowly, done, 0))
    writer.close()
    writer.close()
    assert done == [0]


def test_a_slow_disk_makes_steps_wait_and_not_memory_grow():
    writer, done = Writer(), []
    for number in range(10):
        writer.put(partial(slowly, done, number))
        assert number - len(done) <= 6
    writer.close()


def test_an_error_is_raised_by_the_flush_and_nothing_is_written_after_it():
    writer, done = Writer(), []

    def fail():
        raise OSError("full")

    writer.put(fail)
    writer.put(partial(done.append, 1))
    with pytest.raises(OSError, match="full"):
        writer.flush()
    assert done == []
    writer.close()


def test_nothing_to_write():
    writer = Writer()
    writer.flush()
    writer.close()
