"""Trace → SavedModel and graph, which need TensorFlow but not this library."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from retrotape._types import Tensor
from retrotape.errors import TapeUseError
from retrotape.execute import Values, bind, run_steps
from retrotape.files.save import name_everything, single_variables
from retrotape.ir import COLLECTIVES, CUSTOM, LEAF, BackwardFunction
from retrotape.record import Trace, traits
from retrotape.rules import FORWARD
from retrotape.tf.core import tf
from retrotape.transform import portable


def export_saved_model(trace: Trace, names: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a SavedModel that runs the program, and one gradient for each named scalar."""
    module = _Exported(trace, names)
    signatures = {"serving_default": module.replay, **module.gradients}
    tf.saved_model.save(module, os.fspath(path), signatures=signatures)


def export_graph(trace: Trace, names: Mapping[str, Any], directory: str | os.PathLike[str]) -> None:
    """Write the program as a graph that TensorBoard shows."""
    graph = _Exported(trace, names).replay.get_concrete_function().graph
    with tf.summary.create_file_writer(os.fspath(directory)).as_default():
        tf.summary.graph(graph)


class _Exported(tf.Module):
    """A module made from a trace: `replay` from inputs to outputs, and gradients."""

    def __init__(self, trace: Trace, names: Mapping[str, Any]) -> None:
        super().__init__("tape")
        self._whole = whole = single_variables(portable(trace), names)
        communicated = next((eqn for eqn in whole.program.eqns if eqn.op in COLLECTIVES), None)
        if communicated is not None:
            raise TapeUseError(
                f"A tape of one worker cannot be exported: {communicated.op} at {whole.program.frame_of(communicated)} "
                "needs the others. Save it on every worker, `tape.save('job/', names)`, and export `rt.load('job/')`."
            )
        named = name_everything(whole, names)
        self._plain = _plain_names(named)
        vars_of = {name: what["var"] for name, what in named.items() if "var" in what}
        producers, types = whole.program.producers, whole.program.types
        self._inputs = {name: var for name, var in vars_of.items() if producers[var] == LEAF}
        self._outputs = {name: var for name, var in vars_of.items() if producers[var] != LEAF}
        if not self._outputs:
            raise TapeUseError('Name at least one result to export: `names={"x": x, "loss": loss}`.')
        values = Values(whole)
        self.held: dict[str, tf.Variable] = {}
        self._entries: dict[int, str] = {}  # first version of a variable → its name
        self._called: dict[str, list[str]] = {}  # all names of a variable by the first one
        for called, history in zip(_variable_names(named), whole.facts.histories.values(), strict=True):
            first, name = history.versions[0], called[0]
            if producers[first] == LEAF and first in whole.values:
                self.held[name] = tf.Variable(values(first), name=self._plain[name])
                self._entries[first], self._called[name] = name, called
        self._constants = {
            var: values(var)
            for var in whole.values
            if (producers[var] == LEAF or _draws(whole, var))
            and var not in self._entries
            and types[var].dtype not in (20, 21)
        }
        signature = {
            name: tf.TensorSpec(types[var].shape, types[var].dtype, self._plain[name])
            for name, var in self._inputs.items()
        }
        self.replay = tf.function(self._replay, [signature] if signature else [], autograph=False)
        self.gradients = {
            f"gradient_of_{self._plain[name]}": tf.function(self._gradient_of(name), [signature], autograph=False)
            for name, var in self._outputs.items()
            if types[var].shape == () and tf.as_dtype(types[var].dtype).is_floating
        }

    def _replay(self, inputs: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        env = self._run(inputs or {}, {name: variable.read_value() for name, variable in self.held.items()})
        return {self._plain[name]: env[var] for name, var in self._outputs.items()}

    def _gradient_of(self, target: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        def gradient(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            held = {name: variable.read_value() for name, variable in self.held.items()}
            sources = {**inputs, **held}
            floating = {name: tensor for name, tensor in sources.items() if tensor.dtype.is_floating}
            result = self._run(inputs, held)[self._outputs[target]]
            # Symbolic gradients, not a tape: a tape does not record ops that are run by name.
            found = tf.gradients(result, list(floating.values()), unconnected_gradients="zero")
            grads = {name: tf.convert_to_tensor(grad) for name, grad in zip(floating, found, strict=True)}
            return {self._plain[also]: grads[name] for name in grads for also in self._called.get(name, [name])}

        return gradient

    def _run(self, inputs: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> dict[int, Tensor]:
        whole = self._whole
        # Constants of the graph: a gradient that reads a tensor from outside cannot be saved.
        env: dict[int, Tensor] = {var: tf.constant(value.numpy()) for var, value in self._constants.items()}
        env.update({var: held[name] for var, name in self._entries.items()})
        env.update({var: inputs[name] for name, var in self._inputs.items()})
        eqns = whole.program.eqns
        # Skips random ops, whose recorded values are constants, and ops on inputs without a value, such as handles.
        indices = (
            index
            for index, eqn in enumerate(eqns)
            if not all(var in env for var in eqn.outputs) and all(var in env for var in eqn.inputs)
        )
        for index, eqn in run_steps(whole.program, env, indices):
            if eqn.op == CUSTOM:
                outputs = _with_backward(whole.facts.backward_functions[index], env, [env[var] for var in eqn.outputs])
                env.update(zip(eqn.outputs, outputs, strict=True))
        return env


def _with_backward(back: BackwardFunction, env: Mapping[int, Tensor], outputs: list[Tensor]) -> list[Tensor]:
    """Return tensors that have a custom backward function."""
    function = bind(back.function, [env[var] for var in back.captures])

    @tf.custom_gradient
    def wrapped(*inputs: Tensor) -> Any:
        return [tf.identity(output) for output in outputs], lambda *grads: function(*grads)

    return list(wrapped(*[env[var] for var in back.inputs]))


def _draws(trace: Trace, var: int) -> bool:
    eqn = trace.program.eqns[trace.program.producers[var]]
    return not (eqn.op == CUSTOM or eqn.op in FORWARD or eqn.op.startswith("Resource") or traits(eqn.op).replayable)


def _variable_names(named: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    """Return the names of each variable."""
    by_number: dict[int, list[str]] = {}
    for name, what in named.items():
        if "variable" in what:
            by_number.setdefault(what["variable"], []).append(name)
    return [by_number[number] for number in sorted(by_number)]


def _plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return for each name a unique one that is valid in a SavedModel's signature; valid names are kept."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names, key=lambda name: (_plain(name) != name, name)):
        plain, number = _plain(name), 0
        while plain in taken:
            number += 1
            plain = f"{_plain(name)}_{number}"
        taken.add(plain)
        found[name] = plain
    return found


def _plain(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return "n" + plain if plain.startswith("_") else plain
