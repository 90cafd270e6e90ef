"""The same bits from every executor, also if a worker dies; and what is refused."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context, spawn

import pytest

import retrotape as rt
from distribute import dying
from distribute.conftest import CHUNK
from distribute.making import assert_same_bits
from retrotape.distribute import _executors, _processes
from retrotape.distribute._pool import new_pool
from retrotape.errors import FarmError, MissingPackageError


def test_threads_give_the_same_bits(tapes, expected):
    with ThreadPoolExecutor(3) as pool:
        assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, executor=pool), expected)
        found = rt.farm.map(tapes, lambda tape: tape.gradient("loss", "b"), executor=pool, chunk=CHUNK)
    assert [value.tolist() for value in found] == [
        rt.load(path).gradient("loss", "b").numpy().tolist() for path in tapes
    ]


def test_a_process_pool_gives_the_same_bits(tapes, expected, tmp_path):
    spawn.set_executable(sys.executable)  # once as users have it
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, executor=pool), expected)
        norms = rt.farm.map(tapes, dying.norm_of_x, executor=pool, chunk=CHUNK)
        paths = [{"x": rt.load(path)["x"]} for path in tapes[:5]]
        replayed = rt.farm.replay(tapes[0], paths, dying.norm_of_x, executor=pool, chunk=2, work=tmp_path)
    assert list(norms) == [dying.norm_of_x(rt.load(path)) for path in tapes]
    assert list(replayed) == norms[:5]
    assert not list(tmp_path.glob("inputs-*"))  # not needed any more


def test_processes_of_our_own_give_the_same_bits_though_one_is_killed(tapes, expected, tmp_path, monkeypatch):
    marker, pools = tmp_path / "died", []

    def new_pool(workers):
        pools.append(workers)
        return dying.pool(workers, str(marker), after=6)

    monkeypatch.setattr(_processes, "new_pool", new_pool)
    assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, executor=2), expected)
    assert marker.exists()
    assert len(pools) == 2  # the rest in a new one


def test_processes_of_our_own_share_the_cores(tapes, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import os, sys\n"
        "from retrotape.distribute._pool import _limit_threads\n"
        "assert 'tensorflow' not in sys.modules\n"
        "_limit_threads(3)\n"
        "print(os.environ['OMP_NUM_THREADS'], os.environ['TF_NUM_INTRAOP_THREADS'])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["3", "3"]
    assert new_pool(2)._initargs == (3,)
    assert new_pool(50)._initargs == (1,)


def test_a_tape_that_kills_its_process_is_named_and_left_out(tapes, monkeypatch):
    monkeypatch.setattr(_processes, "_WITHOUT_PROGRESS", 1)  # three take longer
    deadly = rt.load(tapes[2])
    options = {"chunk": CHUNK, "executor": 1}
    question = functools.partial(dying.die_of, dying.norm_of_x(deadly))
    died = (
        "ProcessDiedError: The process that computed it was killed or crashed, also when it was the only one. It may "
        "need more memory than there is; in this process, `executor=None`, a crash shows where."
    )
    with pytest.raises(FarmError) as raised:
        rt.farm.map(tapes[:4], question, **options)
    assert str(raised.value).startswith(f"{tapes[2]} failed: {died} To leave out tapes that fail")
    found = rt.farm.map(tapes[:6], question, on_error="continue", **options)
    assert found.failed == {tapes[2]: died}
    left = [number for number in range(6) if number != 2]
    assert [found[number] for number in left] == [dying.norm_of_x(rt.load(tapes[number])) for number in left]


def test_processes_that_die_before_any_tape_name_the_chunk(tapes, monkeypatch):
    monkeypatch.setattr(_processes, "_WITHOUT_PROGRESS", 1)
    monkeypatch.setattr(_processes, "new_pool", dying.dead_pool)
    with pytest.raises(FarmError) as raised:
        rt.farm.map(tapes[:5], dying.norm_of_x, executor=1)
    assert str(raised.value) == (
        "Processes of the farm died 2 times in a row without finishing a chunk, the last time alone with that of "
        f"{tapes[0]}, {tapes[1]}, {tapes[2]} and 2 more. They may lack memory: give a smaller chunk, `chunk=1`, and a "
        "folder to go on in, `work=`. A script that starts processes needs "
        '`if __name__ == "__main__":` around what it runs.'
    )


@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by a signal")
def test_workers_end_with_a_driver_that_was_killed():
    driver = subprocess.Popen([sys.executable, dying.__file__], stdout=subprocess.PIPE, text=True)
    try:
        worker = int(driver.stdout.readline())
        os.kill(worker, 0)  # it is there
    finally:
        driver.kill()
        # The worker has the other end of this pipe too: the pipe ends when both are gone.
        try:
            rest, _ = driver.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.kill(worker, signal.SIGKILL)
            raise
    assert rest == ""


def test_a_killed_worker_of_the_users_pool_says_how_to_go_on(tapes, expected, tmp_path):
    work = tmp_path / "work"
    with dying.pool(1, str(tmp_path / "died"), after=11) as pool:
        with pytest.raises(FarmError) as raised:
            rt.farm.backward(tapes, "loss", chunk=CHUNK, executor=pool, work=work)
        again = "Call again with a new executor and `work={!r}`: what is done is not computed again."
        assert str(raised.value) == (
            f"A worker of the executor died, and the executor can do no more. {again.format(str(work))}"
        )
        with pytest.raises(FarmError, match="the executor can do no more"):  # a broken pool stays broken
            rt.farm.backward(tapes, "loss", chunk=CHUNK, executor=pool, work=work)
    assert len(list(work.glob("*.part"))) == 2  # loads 1 to 8
    assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, work=work), expected)


def test_without_a_folder_what_is_done_is_kept_where_the_error_says(tapes, expected, tmp_path):
    with dying.pool(1, str(tmp_path / "died"), after=11) as pool, pytest.raises(FarmError) as raised:
        rt.farm.backward(tapes, "loss", chunk=CHUNK, executor=pool)
    work = str(raised.value).split("`work='")[1].split("'")[0]
    assert len(os.listdir(work)) == 2
    assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, work=work), expected)


@pytest.mark.filterwarnings("ignore")  # Dask's and Tornado's own
def test_dask_gives_the_same_bits(tapes, expected):
    distributed = pytest.importorskip("distributed", reason="the oldest environment does not have Dask")
    options = {"n_workers": 1, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, executor=client), expected)
        shift = 2.5
        found = rt.farm.map(tapes[:3], lambda tape: dying.norm_of_x(tape) + shift, executor=client)
        assert list(found) == [dying.norm_of_x(rt.load(path)) + shift for path in tapes[:3]]
        with pytest.raises(FarmError, match=r"0000.tape failed: UnknownNameError: This tape has nothing named 'lass'"):
            rt.farm.backward(tapes, "lass", executor=client)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("executor", ["dask", 2.0, True, object])
def test_an_unknown_executor(tapes, executor):
    with pytest.raises(TypeError) as raised:
        rt.farm.backward(tapes, "loss", executor=executor)
    assert str(raised.value) == (
        "executor= takes None, a number of processes, a `concurrent.futures` executor, a `dask.distributed.Client`, "
        f'or "ray"; got {executor!r}.'
    )


def test_a_pool_that_forks(tapes):
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool, pytest.raises(ValueError) as raised:  # noqa: PT011
        rt.farm.backward(tapes, "loss", executor=pool)
    assert str(raised.value) == (
        "executor= is a pool whose processes are forked, in which TensorFlow hangs; expected spawned ones: "
        '`ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))`, or `executor=2`.'
    )


def test_no_processes(tapes):
    with pytest.raises(ValueError, match=r"executor= takes None, .*; got 0 processes\."):
        rt.farm.backward(tapes, "loss", executor=0)


def test_ray_that_is_not_installed(tapes, monkeypatch):
    monkeypatch.setattr(_executors, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError) as raised:
        rt.farm.backward(tapes, "loss", executor="ray")
    assert str(raised.value) == 'A farm on Ray needs ray, which is not installed: `pip install "retrotape[ray]"`.'


def test_ray_is_not_started_where_it_would_listen_to_the_network(tapes, monkeypatch):
    class Ray:
        __name__ = "ray"
        is_initialized = staticmethod(lambda: False)

    monkeypatch.setitem(sys.modules, "ray", Ray())
    monkeypatch.setattr(_executors, "find_spec", lambda name: name)
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    with pytest.raises(FarmError) as raised:
        rt.farm.backward(tapes, "loss", executor=sys.modules["ray"])
    assert str(raised.value) == (
        "Ray was imported, but not started; started by a farm now, it would listen on all network interfaces. "
        "Start it: `ray.init()`. Or set `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0` before you import it, for ports on "
        "loopback only."
    )


def test_the_environment_is_as_before_when_ray_was_started(monkeypatch):
    """And a second farm can start it again."""
    name, seen = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", []

    class Ray:
        is_initialized = staticmethod(lambda: False)
        init = staticmethod(lambda **options: seen.append((os.environ.get(name), options["_node_ip_address"])))

    def import_module(wanted):
        seen.append((wanted, os.environ.get(name)))
        return sys.modules.setdefault(wanted, Ray())

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray")
    monkeypatch.setattr(_executors, "import_module", import_module)
    monkeypatch.setattr(_executors, "_ray_on_loopback", None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv(name, raising=False)
    for _ in range(2):
        assert _executors._ray() == (sys.modules["ray"], True)
        assert name not in os.environ
    assert seen == [("ray", "0"), ("0", "127.0.0.1"), ("0", "127.0.0.1")]
    monkeypatch.setenv(name, "1")
    with pytest.raises(FarmError, match="it would listen on all network interfaces"):
        _executors._ray()
    assert os.environ[name] == "1"


def test_what_was_submitted_is_cancelled_if_the_executor_takes_no_more(tapes):
    submitted: list[Future] = []

    class Limited(Executor):
        def submit(self, function, /, *args, **options):
            if len(submitted) == 2:
                raise RuntimeError("cannot schedule new futures after shutdown")
            submitted.append(Future())
            return submitted[-1]

    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        rt.farm.backward(tapes, "loss", chunk=CHUNK, executor=Limited())
    assert [future.cancelled() for future in submitted] == [True, True]
