"""Which layer an op belongs to, as far as a recording shows it.

A tape hears ops, not layers. What it knows for certain is which variables were read, and Keras names them by their
layer: `model/dense/kernel`. An op is counted to a layer from the first read of one of its variables up to the first
read of another layer's, or until the user's line changes. What has no variables, such as an activation or a pooling
layer, is therefore counted to the layer before it.
"""

from __future__ import annotations

from retrotape.record import Recording


def name_of(recording: Recording, var: int) -> str:
    """Return the name of the variable that had this value; empty where it has none."""
    cell = recording.cell_of.get(var)
    variable = None if cell is None else recording.variables.get(cell.handle._id)
    return "" if variable is None else recording.path_of(variable)


def layers_of(recording: Recording) -> list[str]:
    """Return for each equation the name of the layer that it is counted to; empty where there is none."""
    found: list[str] = []
    layer, here = "", None
    program = recording.program()
    for eqn in program.eqns:
        if program.frames[eqn.frame] != here:
            layer, here = "", program.frames[eqn.frame]
        for var in eqn.inputs:
            name = name_of(recording, var) if var in recording.cell_of else ""
            if "/" in name:
                layer = name.rpartition("/")[0]
        found.append(layer)
    return found


def is_part(name: str, path: str) -> bool:
    """Say whether a name is a path, or some steps of it in a row.

    >>> is_part("block/conv", "model/block/conv"), is_part("con", "model/block/conv")
    (True, False)
    """
    return f"/{name.strip('/')}/" in f"/{path}/"
