"""The `--picture` option of the examples. Only this option needs matplotlib, which is an extra.

`python examples/pinn.py --picture` saves `examples/pictures/pinn.png`; `--picture heat.png` saves it there.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "pictures"
Draw = Callable[[Any, dict[str, Any]], None]


def start(main: Callable[[], dict[str, Any]], draw: Draw) -> None:
    """Run an example, and save its picture if the command line asks for it."""
    name = Path(inspect.getfile(main)).stem
    parser = argparse.ArgumentParser(description=main.__globals__["__doc__"])
    text = "also save a picture, at PATH if given (needs matplotlib)"
    parser.add_argument("--picture", nargs="?", const=FOLDER / f"{name}.png", type=Path, metavar="PATH", help=text)
    path = parser.parse_args().picture
    if path is not None:
        need_matplotlib()  # before the example trains for seconds
    numbers = main()
    if path is not None:
        save(draw, numbers, path)
        print(f"picture: {path}")


def need_matplotlib() -> None:
    """Exit with an install command if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit('--picture needs matplotlib, which is not installed. Type: pip install "retrotape[examples]"')


def save(draw: Draw, numbers: dict[str, Any], path: Path) -> None:
    """Draw what an example's `main` returned, and save it; the extension of the path sets the format."""
    from matplotlib.figure import Figure  # no pyplot: no window, and no backend to choose

    figure = Figure(figsize=(9.0, 3.6), dpi=100, layout="constrained")
    draw(figure, numbers)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
