"""A thousand tapes on Dask and on Ray, with a worker killed half way: the exact sum, to the bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import retrotape as rt
from distribute import dying
from distribute.making import assert_same_bits, plain_sum, save_tapes

COUNT, CHUNK = 1000, 16
TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def thousand(tmp_path_factory) -> list[str]:
    return save_tapes(tmp_path_factory.mktemp("thousand"), COUNT)


@pytest.fixture(scope="module")
def sums(thousand):
    return plain_sum(thousand, CHUNK)


def assert_each_counts(paths: list[str], sums) -> None:
    """Hold that the comparison would notice a tape that is missing or counts twice."""
    for other in (paths[1:], [*paths, paths[0]]):
        with pytest.raises(AssertionError):
            assert_same_bits(rt.farm.backward(other, "loss", chunk=CHUNK), sums)


@pytest.mark.slow
def test_one_process(thousand, sums):
    assert_same_bits(rt.farm.backward(thousand, "loss", chunk=CHUNK), sums)
    assert_each_counts(thousand, sums)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask's and Tornado's own
def test_dask_with_a_worker_killed(thousand, sums, tmp_path):
    distributed = pytest.importorskip("distributed", reason="the oldest environment does not have Dask")
    marker = tmp_path / "died"
    options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        before = set(client.run(os.getpid).values())
        client.run(dying.arm, str(marker), 300)
        total = rt.farm.backward(thousand, "loss", chunk=CHUNK, executor=client)
        client.wait_for_workers(2)
        after = set(client.run(os.getpid).values())
    assert marker.exists()
    assert len(before & after) == 1  # one was killed, and started anew
    assert total.count == COUNT
    assert_same_bits(total, sums)


def listening() -> set[str]:
    """Return the addresses that processes which this one has started listen on."""
    psutil = pytest.importorskip("psutil", reason="the oldest environment does not have Dask, which brings it")
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    found = psutil.net_connections("tcp")
    return {one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN and one.pid in ours}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_with_a_worker_killed(thousand, sums, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # before it is imported: ports on loopback only
    monkeypatch.setenv("DYING_MARKER", str(tmp_path / "died"))
    monkeypatch.setenv("DYING_AFTER", "300")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]))
    ray = pytest.importorskip("ray", reason="the oldest environment does not have Ray")
    options = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": 2, "log_to_driver": False}
    ray.init(runtime_env={"worker_process_setup_hook": "distribute.dying.arm_from_environment"}, **options)
    try:
        total = rt.farm.backward(thousand, "loss", chunk=CHUNK, executor="ray")
        opened = listening()
    finally:
        ray.shutdown()
    assert opened
    assert opened <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert (tmp_path / "died").exists()
    assert total.count == COUNT
    assert_same_bits(total, sums)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_ray_that_the_farm_starts_listens_on_loopback_only(tapes, monkeypatch):
    ray = pytest.importorskip("ray", reason="the oldest environment does not have Ray")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # the test before has imported it with this
    opened, wait = [], ray.wait

    def look_and_wait(*args, **options):
        opened.append(listening())
        return wait(*args, **options)

    monkeypatch.setattr(ray, "wait", look_and_wait)
    there = rt.farm.backward(tapes, "loss", executor="ray")
    assert not ray.is_initialized()
    assert there == rt.farm.backward(tapes, "loss")
    assert opened[0]
    assert set().union(*opened) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
