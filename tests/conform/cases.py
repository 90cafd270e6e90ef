"""All cases of the conformance table."""

from __future__ import annotations

from conform import (
    cases_arrays,
    cases_custom,
    cases_flow,
    cases_functions,
    cases_layers,
    cases_math,
    cases_nn,
    cases_questions,
    cases_state,
)
from conform.table import Case

_FILES = (
    cases_math,
    cases_arrays,
    cases_nn,
    cases_state,
    cases_flow,
    cases_functions,
    cases_custom,
    cases_layers,
    cases_questions,
)
CASES: list[Case] = [case for file in _FILES for case in file.CASES]
