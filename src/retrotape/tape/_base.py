"""The base of every tape: it can be queried, diagnosed, saved and replayed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from retrotape._types import Nest
from retrotape.diagnose.diagnosis import IN_EAGER_CODE, Diagnosis
from retrotape.errors import ShapeMismatchError, TapeUseError
from retrotape.files.saved import Saved
from retrotape.logs import Logged
from retrotape.playback import Playable
from retrotape.query import Queries, make_request
from retrotape.record import EagerSession, Session, Trace
from retrotape.report import Reported
from retrotape.tf.core import tf
from retrotape.tf.methods import locked
from retrotape.tf.nests import TensorRef, describe, is_variable, take_apart, unwrap

if TYPE_CHECKING:
    from retrotape.tape.loaded import LoadedTape


class AnyTape(Queries, Diagnosis, Saved, Playable, Logged, Reported):
    """A tape of any kind: live, loaded or joined. They differ in where their program comes from."""

    @abstractmethod
    def _named(self, name: str) -> Any:
        """Return the tensor or variable of a name, in a form that queries accept."""

    @abstractmethod
    def _replayed(self, trace: Trace) -> LoadedTape:
        """Return the tape of a replay, with the names of this one."""

    @locked
    def replay(
        self, inputs: Mapping[str, Any] | Iterable[tuple[Any, Any]], *, resample: bool = False, trust: bool = False
    ) -> LoadedTape:
        """Return a tape of the same program on other values.

        Random numbers are the recorded ones. Tensors, variables and names of this tape can be used on the new one and
        refer to their counterparts there; `value` returns their new values.

        Args:
          inputs: New values, by name on a tape that has names, or as pairs of a tensor (or variable) and its new value.
          resample: Draw new random numbers; seeds in variables, such as those of Keras, get new values.
          trust: Continue if a value that Python read has changed, although Python might have taken another branch, or
            if a result has a new size.

        Raises:
          ReplayError: If a value that Python read has changed, or a size that it may have read.
          ShapeMismatchError: If a new value has another shape or dtype.

        >>> x = tf.constant(3.0)
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> again = tape.replay([(x, 5.0)])
        >>> float(again.value(y)), float(again.gradient(y, x))
        (25.0, 10.0)
        """
        session = self._eager("replay")
        found = []
        for key, value in _pairs(inputs):
            part = self._one(key)
            try:
                new = tf.convert_to_tensor(value, part.dtype)
            except (TypeError, ValueError) as error:
                raise ShapeMismatchError(
                    f"Got {type(value).__name__} as a new value for {describe(part)}: {error}. "
                    f"Convert it first: `tf.cast(value, tf.{part.dtype.name})`."
                ) from None
            if new.shape != part.shape:
                raise ShapeMismatchError(
                    f"Got a new value of shape {tuple(new.shape)} for {describe(part)}. "
                    "The program was recorded for the old shape; record again for a new one."
                )
            found.append((part, tf.identity(new)))
        from retrotape.transform import replay  # imported late: most programs replay nothing

        return self._replayed(replay(session.trace, found, resample, trust))

    def _eager(self, method: str) -> EagerSession:
        session = self._recorded()
        if not isinstance(session, EagerSession):
            raise TapeUseError(
                f"{method} works on tapes recorded in eager code; this one is in a tf.function. {IN_EAGER_CODE}"
            )
        return session

    def _one(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._named(key)
        part = unwrap(key)
        if not (is_variable(part) or isinstance(part, (tf.Tensor, TensorRef))):
            raise TypeError(
                f"Got {key!r}; this tape has no names, so give a tensor or a variable: `tape.replay([(x, new_x)])`."
            )
        return part

    def _targets(self, session: Session, target: Nest) -> tuple[int, ...]:
        return make_request(session, self._results, target, take_apart([], "source"), ones=False).targets

    def _is_result(self, part: Any) -> bool:
        return self._results.request_of(part) is not None


def _pairs(inputs: Any) -> list[Any]:
    given = list(inputs.items()) if isinstance(inputs, Mapping) else inputs
    pairs = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, tf.Tensor)) else [None]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            f"replay takes new values by name, `{{'x': new_x}}`, or pairs, `[(x, new_x)]`; got {type(inputs).__name__}."
        )
    return pairs
