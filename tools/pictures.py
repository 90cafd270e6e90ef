"""Draw the terminal pictures of the README: what these programs print, as SVG.

python tools/pictures.py            writes docs/pictures/why.svg and demo.svg
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.terminal_theme import MONOKAI

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"

# No web font, unlike rich's own frame: a picture is looked at without a network.
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""

WHY = """\
w = tf.Variable(3.0, name="w")
with rt.Tape() as tape:
    scores = tf.stack([w, 2.0 * w, 5.0])
    best = tf.argmax(scores)
    loss = tf.cast(best, tf.float32) ** 2
print(tape.why(loss, w))
"""


def terminal() -> Console:
    """Return a terminal that remembers what was printed in it."""
    return Console(width=84, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")


def why() -> Console:
    """Run a program whose gradient is None, and let the tape say why."""
    import tensorflow as tf

    import retrotape as rt
    from retrotape.cli._demo._show import hung

    console, told, path = terminal(), [], FOLDER / "train.py"
    path.write_text(WHY)  # the tape shows the source of its lines
    try:
        exec(compile(WHY, str(path), "exec"), {"tf": tf, "rt": rt, "print": told.append})
        text = str(told[0])
    finally:
        path.unlink()
    console.print(Syntax(WHY.rstrip(), "python", theme="monokai", background_color="default"))
    console.print()
    console.print(hung(text.replace(f"{FOLDER}/", ""), console.width), highlight=False, markup=False)
    return console


def demo() -> Console:
    """Run some steps of the tour."""
    from retrotape.cli._demo import STEPS, run

    console = terminal()
    run(console, STEPS[1:4])
    return console


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for draw, title in ((why, "why is my gradient None?"), (demo, "retrotape demo")):
        picture = draw().export_svg(title=title, theme=MONOKAI, code_format=FRAME, unique_id=draw.__name__)
        (FOLDER / f"{draw.__name__}.svg").write_text(picture)


if __name__ == "__main__":
    main()
