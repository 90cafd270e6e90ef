"""Write the table of tensors that no gradient rule looks at, as the installed TensorFlow knows it.

TensorFlow keeps the table in C++ and does not export it. It shows when a gradient function is called: what
the table excludes arrives as None. `python tools/exclusions.py > src/retrotape/record/exclusions.json`
"""

import json

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.framework import ops

WIDTH = 12  # more inputs or outputs than any op in the table names one by one


def probe(names):
    """Return {op: [unused inputs, unused outputs]}, each "all" or a list of positions."""
    table, seen = {}, {}

    def spy(op, attrs, num_inputs, inputs, outputs, out_grads, skip, scope):
        seen["tensors"] = (inputs, outputs)
        return [None] * num_inputs

    inputs = [tf.constant(1.0) for _ in range(WIDTH)]
    pywrap_tfe.TFE_Py_RegisterGradientFunction(spy)
    try:
        for name in names:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = [tf.constant(2.0) for _ in range(WIDTH)]
                backprop.record_gradient(name, inputs, (), outputs)
            tape.gradient(outputs, inputs)
            unused = [
                "all" if given is None else [index for index, tensor in enumerate(given) if tensor is None]
                for given in seen["tensors"]
            ]
            if any(unused):
                table[name] = unused
    finally:
        pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
    return table


if __name__ == "__main__":
    rows = probe(sorted(ops.gradient_registry.list()))
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()) + "\n}")
