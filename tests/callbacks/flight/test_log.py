"""What a log gives back after a kill: whole records, in order, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from retrotape.callbacks.flight._log import BATCH, NAMES, STATE, Log, as_array, as_bytes, read


def arrays(seed: int, count: int = 3) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.normal(size=draw.integers(0, 9, size=2)) for _ in range(count)]


def written(folder, batches: int, snapshots: int = 1) -> Log:
    log = Log(str(folder))
    for snapshot in range(snapshots):
        log.snapshot(snapshot * batches, 0, arrays(1000 + snapshot))
        for step in range(snapshot * batches, (snapshot + 1) * batches):
            log.batch(step, 1, arrays(step))
    return log


def content(records) -> list[tuple[int, int, list[bytes]]]:
    return [(record.kind, record.step, [bytes(buffer) for buffer in record.buffers]) for record in records]


def expected(snapshot: int, batches: int) -> list[tuple[int, int, list[bytes]]]:
    steps = range(snapshot * batches, (snapshot + 1) * batches)
    state = STATE, snapshot * batches, [bytes(as_bytes(array)) for array in arrays(1000 + snapshot)]
    return [state, *((BATCH, step, [bytes(as_bytes(array)) for array in arrays(step)]) for step in steps)]


def test_records_come_back_in_order(tmp_path):
    log = written(tmp_path, 4)
    assert content(log.records()) == expected(0, 4)
    log.close()


def test_a_new_snapshot_takes_the_place_of_the_older_one(tmp_path):
    log = written(tmp_path, 4, snapshots=5)
    found = sorted((content(read(str(tmp_path / name))) for name in NAMES), key=lambda records: records[0][1])
    assert found == [expected(3, 4), expected(4, 4)]
    assert content(log.records()) == expected(4, 4)
    log.close()


def test_what_is_left_over_in_a_file_is_not_taken_for_new(tmp_path):
    log = written(tmp_path, 6, snapshots=2)
    log.snapshot(12, 0, arrays(1))  # shorter than what was in that file
    log.batch(12, 1, arrays(2))
    assert [(record.kind, record.step) for record in log.records()] == [(STATE, 12), (BATCH, 12)]
    log.close()


def test_what_is_left_over_is_not_taken_for_new_even_if_the_step_would_fit(tmp_path):
    log, state = Log(str(tmp_path)), arrays(1)
    log.snapshot(0, 0, state)
    log.batch(0, 1, arrays(2))
    log.snapshot(0, 0, state)  # the other file
    log.snapshot(0, 0, state)  # the first again, up to where the old batch begins
    assert [one.kind for one in log.records()] == [STATE]
    log.close()


def test_a_log_that_is_cut_off_anywhere_gives_a_beginning_of_what_was_written(tmp_path):
    written(tmp_path, 3).close()
    name = next(name for name in NAMES if (tmp_path / name).stat().st_size)
    whole, right = (tmp_path / name).read_bytes(), expected(0, 3)
    seen = set()
    for end in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:end])
        found = content(read(str(tmp_path / "cut")))
        assert found == right[: len(found)]
        seen.add(len(found))
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("junk", [b"\x00", b"\xff", b"older"])
def test_a_part_that_was_not_written_is_noticed_wherever_it_is(tmp_path, junk):
    """As after a crash of the machine: pages are on disk in any order."""
    written(tmp_path, 3).close()
    name = next(name for name in NAMES if (tmp_path / name).stat().st_size)
    whole, right = (tmp_path / name).read_bytes(), expected(0, 3)
    for begin in range(len(whole)):
        damaged = bytearray(whole)
        damaged[begin : begin + len(junk)] = junk
        (tmp_path / "torn").write_bytes(damaged[: len(whole)])
        found = content(read(str(tmp_path / "torn")))
        assert found == right[: len(found)]
        assert bytes(damaged[: len(whole)]) == whole or len(found) < len(right)


def test_a_snapshot_of_many_variables_is_written_in_several_calls(tmp_path):
    log, many = Log(str(tmp_path)), [np.full([3], number) for number in range(2500)]
    log.snapshot(0, 0, many)
    (record,) = log.records()
    np.testing.assert_array_equal([np.frombuffer(buffer, int) for buffer in record.buffers], many)
    log.close()


@pytest.mark.parametrize(
    "array",
    [
        np.float32(3.5),
        np.zeros([0, 4], "f8"),
        np.arange(6, dtype="i2").reshape(2, 3)[:, ::2],
        np.array([True, False]),
        np.array([["two", "words"], ["", "ä"]], object),
    ],
    ids=["scalar", "empty", "strided", "bool", "text"],
)
def test_arrays_come_back(array):
    found = as_array(bytes(as_bytes(array)), np.asarray(array).dtype, np.shape(array))
    texts = np.vectorize(lambda item: item.encode() if isinstance(item, str) else item)
    np.testing.assert_array_equal(found, texts(array) if np.asarray(array).dtype.hasobject else array)
