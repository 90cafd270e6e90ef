"""Draw the pictures of a report for the README and the docs: `python tools/report_pictures.py`.

Needs Chromium, and Playwright from PyPI; `make test-browser` installs both.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
SCALE = {"width": 1280, "height": 1190}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]

# What the pictures show: a small Transformer with two mistakes, which the report finds.
PROGRAM = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers

import retrotape as rt

keras.utils.set_random_seed(1)


class Block(layers.Layer):
    def __init__(self, width, **options):
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(4, width // 4, name="attention")
        self.norm1 = layers.LayerNormalization(name="norm1")
        self.norm2 = layers.LayerNormalization(name="norm2")
        self.up = layers.Dense(4 * width, activation="relu", name="up")
        self.down = layers.Dense(width, name="down")

    def call(self, x):
        x = x + self.attention(self.norm1(x), self.norm1(x))
        return x + self.down(self.up(self.norm2(x)))


tokens = keras.Input([16], dtype="int32")
x = layers.Embedding(100, 32, name="tokens")(tokens)
for number in range(3):
    x = Block(32, name=f"block{number}")(x)
model = keras.Model(tokens, layers.Dense(100, name="head")(x), name="transformer")
quality = layers.Dense(1, name="quality")
model.get_layer("block1").up.bias.assign(np.where(np.arange(128) < 90, -40.0, 0.0))

text = np.random.default_rng(1).integers(0, 100, [8, 17])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(3e-4)

with rt.Tape() as tape:
    logits = model(text[:, :-1], training=True)
    score = quality(tf.stop_gradient(logits))
    scaled = tf.cast(score > 0.0, tf.float32)
    loss = loss_fn(text[:, 1:], logits) + 0.1 * tf.reduce_mean(scaled)
    tape.backward(loss).apply(optimizer)

tape.report(PAGE, loss=loss, title="train.py, step 4,000")
"""


def shoot(browser: Any, page: Path, name: str, scheme: str, section: str) -> None:
    context = browser.new_context(color_scheme=scheme, viewport=SCALE)
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.evaluate(f"document.documentElement.style.scrollBehavior = 'auto'; location.hash = '{section}'")
    tab.wait_for_timeout(300)
    tab.screenshot(path=FOLDER / name)
    context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        source, page = Path(folder) / "train.py", Path(folder) / "step.html"
        source.write_text(PROGRAM.lstrip())
        exec(compile(source.read_text(), str(source), "exec"), {"PAGE": page})
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
            shoot(browser, page, "report_light.png", "light", "")
            shoot(browser, page, "report_dark.png", "dark", "layers")
            browser.close()
        if len(sys.argv) > 1:
            shutil.copy(page, sys.argv[1])


if __name__ == "__main__":
    main()
