"""The workers of a multi-worker strategy: which one this is, and messages between them.

Messages go through the key-value store of TensorFlow's coordination service, not through collective ops: a message can
be sent from any thread while training goes on, and it is known who has not sent one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, TimeoutError
from typing import Any, ClassVar

from retrotape.tf.core import CollectiveStrategy, SyncOnReadVariable, context, tf

LEADER = 0  # the worker that runs the coordination service
_PATIENCE = 10.0  # seconds that the leader may take to answer


class Job:
    """The workers of a strategy.

    Attributes:
      worker: The number of this one.
      workers: How many there are.
      next_save: How many saves with all workers this process has begun, in a list of one.
    """

    next_save: ClassVar[list[int]] = [0]

    def __init__(self, strategy: Any) -> None:
        extended = strategy.extended
        self.worker: int = extended._id_in_cluster
        self.workers: int = extended._num_workers
        spec = strategy.cluster_resolver.cluster_spec()
        self._tasks = [(job, spec.num_tasks(job)) for job in ("chief", "worker") if job in spec.jobs]

    def post(self, key: str, text: str) -> None:
        """Leave a message for all workers.

        Raises:
          ConnectionError: If the first worker, which holds the messages, does not respond.
        """
        service = context.context()
        try:
            try:
                _bounded(lambda: service.set_config_key_value(key, text))
            except tf.errors.AlreadyExistsError:  # the last message counts
                _bounded(lambda: service.delete_config_key_value(key))
                _bounded(lambda: service.set_config_key_value(key, text))
        except tf.errors.OpError as error:
            raise ConnectionError(_first_line(error)) from error

    def forget(self, folder: str) -> None:
        """Remove all messages whose keys begin with `folder`, if the first worker responds."""
        service = context.context()
        with contextlib.suppress(tf.errors.OpError, ConnectionError):
            _bounded(lambda: service.delete_config_key_value(folder))

    def read(self, key: str, seconds: float) -> str | None:
        """Return a message; None if it has not arrived after some time.

        Raises:
          ConnectionError: If the first worker, which holds the messages, does not respond.
        """
        try:
            service, wait = context.context(), max(1, int(1000 * seconds))
            found = _bounded(lambda: service.get_config_key_value(key, wait), seconds)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return None
        except tf.errors.OpError as error:
            raise ConnectionError(_first_line(error)) from error
        return found.decode() if isinstance(found, bytes) else found

    def failed(self) -> dict[int, str]:
        """Return the workers that TensorFlow knows to have failed, each with the reason; only the leader is told.

        Another worker would have to ask the leader, and TensorFlow blocks all Python threads while it waits for it.
        """
        if self.worker != LEADER:
            return {}
        try:
            states = context.context().get_task_states(self._tasks)
        except tf.errors.OpError as error:
            return {LEADER: _first_line(error)}
        return {number: _first_line(state) for number, state in enumerate(states) if state is not None}


def _bounded(call: Callable[[], Any], seconds: float = 0.0) -> Any:
    """Return the result of a call to the leader, which would wait forever for a process that is stopped.

    Raises:
      ConnectionError: If it takes longer than it should.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="retrotape-message", daemon=True).start()  # it may never end
    try:
        return outcome.result(seconds + _PATIENCE)
    except TimeoutError as error:
        raise ConnectionError(f"it does not respond within {seconds + _PATIENCE:.0f} seconds") from error


def _first_line(error: Any) -> str:
    message = str(getattr(error, "message", None) or error).strip()
    return message.splitlines()[0].rstrip(".") if message else type(error).__name__


def is_mirrored(variable: Any) -> bool:
    """Return whether a variable of a strategy is one that all workers of a job keep equal."""
    return not isinstance(variable, SyncOnReadVariable) and _is_job(_strategy_of(variable))


def job_of(variables: Iterable[Any]) -> Job | None:
    """Return the job that variables of strategies belong to, or else the one whose scope this is; None if none."""
    for variable in variables:
        strategy = _strategy_of(variable)
        if _is_job(strategy):
            return Job(strategy)
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    return Job(strategy) if _is_job(strategy) else None


def _strategy_of(variable: Any) -> Any:
    return getattr(variable, "distribute_strategy", None)


def _is_job(strategy: Any) -> bool:
    return isinstance(getattr(strategy, "extended", None), CollectiveStrategy) and strategy.extended._num_workers > 1
