"""Mistakes that a type checker must find, one in each line that says so; never run."""

from __future__ import annotations

import retrotape as rt


def mistakes() -> None:
    tape = rt.Tape(keep="sometimes")  # wrong
    tape.gradiant(1.0, 2.0)  # wrong
    rt.load(3.5)  # wrong
    rt.Tapes()  # wrong
    text: int = tape.summary()  # wrong
    tape.gradient(1.0, 2.0, none="ignore")  # wrong
    tape.backward(1.0, through_update=True)  # wrong
    print(text)
