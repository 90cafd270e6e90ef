"""The work that benchmarks time: `data.py` says what it is, `in_*.py` does it in one framework each."""
