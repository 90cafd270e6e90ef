"""Write the list of ops that a saved tape may name, `src/retrotape/rules/allowed_ops.txt`, from `allowed_ops.toml`.

Ops are listed by family, each with the argument why it is safe to run: they get on the list by being read, never by a
rule. What can be checked by machine is: an op that touches more than its inputs, or that TensorFlow does not have, is
refused. Run: `python tools/allowed_ops.py`
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import tensorflow as tf
import tomllib
from tensorflow.python.framework import op_def_registry

from retrotape.rules import FORWARD

FAMILIES = Path(__file__).with_suffix(".toml")
TARGET = Path(__file__).parents[1] / "src" / "retrotape" / "rules" / "allowed_ops.txt"


def objection(op: str, family: dict[str, Any]) -> str | None:
    """Return why an op cannot be in a family."""
    definition = op_def_registry.get(op)
    if definition is None:
        return f"TensorFlow {tf.__version__} does not have it"
    arguments = [*definition.input_arg, *definition.output_arg]
    kinds = {attr.type for attr in definition.attr}
    if kinds & {"func", "list(func)", "tensor", "list(tensor)"}:
        return "it takes a function or a constant as an attribute"
    resources = any(arg.is_ref or arg.type == tf.resource.as_datatype_enum for arg in arguments)
    if resources and not family.get("variables"):
        return "it takes a resource"
    stateful = definition.is_stateful and op not in ("CheckNumerics", "PlaceholderWithDefault")
    if stateful and not (family.get("stateful") or family.get("variables")):
        return "it has state"
    return None


def main() -> None:
    families = tomllib.loads(FAMILIES.read_text())["family"]
    listed = Counter(op for family in families for op in family["ops"].split())
    wrong = [f"{op}: {why}" for family in families for op in family["ops"].split() if (why := objection(op, family))]
    wrong += [f"{op}: it is there twice" for op, count in listed.items() if count > 1]
    wrong += [f"{op}: it has a rule, and is in no family" for op in FORWARD if op not in listed]
    if wrong:
        raise SystemExit("\n".join(wrong))
    TARGET.write_text("".join(f"{name}\n" for name in sorted(listed)))
    print(f"{len(listed)} ops in {len(families)} families")


if __name__ == "__main__":
    main()
