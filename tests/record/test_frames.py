"""An equation knows the line of the user's code that ran it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, batch, dense_net


def line_of(tape: rt.Tape, op: str) -> tuple[str, int, str]:
    program = tape.program
    (frame,) = {program.frame_of(eqn) for eqn in program.eqns if eqn.op == op}
    return frame.file, frame.line, frame.function


def test_an_equation_knows_the_line_that_ran_it():
    with rt.Tape() as tape:
        here = inspect.currentframe().f_lineno
        tf.sin(X)
        tf.reshape(X, [1])
    function = inspect.currentframe().f_code.co_name
    assert line_of(tape, "Sin") == (__file__, here + 1, function)
    assert line_of(tape, "Reshape") == (__file__, here + 2, function)


def test_the_line_is_the_users_also_deep_inside_keras():
    net, data = dense_net(), batch()
    with rt.Tape() as tape:
        here = inspect.currentframe().f_lineno
        net(data)
    assert line_of(tape, "MatMul") == (__file__, here + 1, inspect.currentframe().f_code.co_name)


def test_the_line_is_the_users_in_a_layer_of_his_own():
    class Mine(keras.layers.Layer):
        def call(self, a):
            return tf.sin(a)

    line = inspect.getsourcelines(Mine.call)[1] + 1
    layer = Mine()
    with rt.Tape() as tape:
        layer(batch())
    assert line_of(tape, "Sin") == (__file__, line, "call")


def test_the_line_inside_a_function_is_where_the_op_was_added():
    found = []

    @tf.function
    def f(a):
        with rt.Tape() as tape:
            y = tf.sin(a)
        found.append(line_of(tape, "Sin"))
        return y

    f(X)
    _, start = inspect.getsourcelines(f.python_function)
    assert found[0][:2] == (__file__, start + 3)


# ------------------------------------------------------------------ libraries that are installed


def installed(tmp_path: Path, name: str, text: str) -> Any:
    """Return a module of a package that somebody has installed."""
    folder = tmp_path / "lib" / "python3" / "site-packages" / name
    folder.mkdir(parents=True)
    file = folder / "core.py"
    file.write_text(text)
    module: dict[str, Any] = {"tf": tf, "np": np}
    exec(compile(text, str(file), "exec"), module)
    return module


def test_a_library_that_is_installed_is_never_the_users_line(tmp_path):
    library = installed(tmp_path, "helpers", "def activate(x):\n    return tf.sin(x)\n")
    with rt.Tape() as tape:
        here = inspect.currentframe().f_lineno + 1
        library["activate"](X)
    assert line_of(tape, "Sin")[:2] == (__file__, here)


def test_a_library_between_keras_and_keras(tmp_path):
    """As optree is: Keras calls it, and it calls Keras."""
    library = installed(tmp_path, "mapping", "def apply(function, x):\n    return function(x)\n")

    class Through(keras.layers.Layer):
        pass

    Through.call = eval("lambda self, x: apply(relu, x)", {"apply": library["apply"], "relu": keras.ops.relu})
    Through.call.__code__ = Through.call.__code__.replace(co_filename=keras.__file__)
    layer = Through()
    with rt.Tape() as tape:
        here = inspect.currentframe().f_lineno + 1
        layer(batch())
    assert line_of(tape, "Relu")[:2] == (__file__, here)


def test_a_look_by_a_library_is_the_users(tmp_path):
    library = installed(tmp_path, "logs", "def log(x):\n    return float(x)\n")
    with rt.Tape() as tape:
        y = tf.sin(tf.constant(1.0))
        here = inspect.currentframe().f_lineno + 1
        library["log"](y)
    look = tape._session.trace.facts.host_reads[-1]
    assert tape.program.frames[look.frame][:2] == (__file__, here)


def test_where_all_is_installed_it_is_the_innermost_that_is_no_library_of_tensorflow(tmp_path):
    text = (
        "import retrotape as rt, tensorflow as tf, numpy as np\n"
        "def main():\n"
        "    with rt.Tape() as tape:\n"
        "        tf.sin(1.0)\n"
        "    print(tape.program.frames[0])\n"
        "main()\n"
    )
    folder = tmp_path / "site-packages" / "command"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(text)
    done = subprocess.run([sys.executable, str(folder / "app.py")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{folder / 'app.py'}:4"
