"""The page in a real browser, driven by mouse and keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import retrotape as rt
from report.browser import Opened, chromium, missing
from report.making import step, transformer

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]
LONGEST = 200.0  # milliseconds


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    """A training step of a Transformer, update included."""
    tape, loss = step(transformer(), keras.optimizers.Adam())
    tape.report(folder / "small.html", loss=loss)
    return folder / "small.html"


@pytest.fixture(scope="module")
def large(folder: Path) -> Path:
    """The same with more than 20,000 ops."""
    tape, loss = step(transformer(blocks=26), keras.optimizers.Adam())
    assert len(tape.report(folder / "large.html", loss=loss).ops) > 20_000
    return folder / "large.html"


@pytest.fixture(scope="module")
def broken(folder: Path) -> Path:
    """A step with a NaN, in layers whose names are hostile."""
    dense = keras.layers.Dense(4, "relu", name="<img src=x onerror=alert(1)>")
    cut = tf.Variable([1.0], name="</script><script>alert(2)</script>")
    with rt.Tape() as tape:
        out = dense(tf.ones([3, 2]))
        loss = tf.reduce_mean(tf.math.log(out * 0.0)) + tf.reduce_sum(tf.stop_gradient(cut))
    tape.report(folder / "broken.html", loss=loss, title="</title><script>alert(3)</script>")
    return folder / "broken.html"


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    found: list[Opened] = []

    def open_(path: Path, *args: Any, **options: Any) -> Opened:
        found.append(Opened(browser, path, *args, **options))
        return found[-1]

    yield open_
    for one in found:
        assert one.requests == []
        assert one.complaints == []
        one.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["small", "broken"])
def test_nothing_is_requested_and_everybody_can_use_it(opened, request, name, scheme):
    page = opened(request.getfixturevalue(name), scheme)
    assert page.violations() == []


def test_an_injected_request_would_be_noticed(browser, folder):
    path = folder / "asks.html"
    path.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>")
    page = Opened(browser, path)
    page.page.wait_for_timeout(300)
    assert page.requests == ["http://127.0.0.1:9/x.png"]
    assert "no" in page.complaints
    page.close()


def test_the_policy_forbids_scripts_that_are_not_its_own(browser, folder, small):
    path = folder / "changed.html"
    path.write_text(small.read_text().replace("</main>", "<script>window.intruder = 1</script></main>"))
    page = Opened(browser, path)
    assert page.page.evaluate("window.intruder") is None
    assert any("Content Security Policy" in text for text in page.complaints)
    page.close()


def test_hostile_names_are_text(opened, broken):
    page = opened(broken)
    assert page.page.title() == "</title><script>alert(3)</script> · retrotape"
    assert page.page.locator("img").count() == 0
    assert any("<img src=x onerror=alert(1)>" in row for row in page.rows())
    assert page.page.get_by_text("</script><script>alert(2)</script>").count() > 0


def test_findings_come_first(opened, broken):
    page = opened(broken).page
    kinds = [one.get_attribute("data-kind") for one in page.locator("article.finding").all()]
    assert kinds == ["nan", "none"]
    first = page.locator("article.finding").first.inner_text()
    assert "Log produced the first value that is not finite. The log of zero is -inf." in first
    assert "loss = tf.reduce_mean(tf.math.log(out * 0.0))" in first
    assert "tf.math.log(tf.maximum(x, 1e-7))" in first


def test_search(opened, small):
    page = opened(small)
    page.page.keyboard.press("/")
    page.page.keyboard.type("einsum block1", delay=10)
    page.wait_for_hits("2 ops")
    assert [row.split()[0] for row in page.rows()] == ["transformer", "block1", "attention", "Einsum", "Einsum"]
    assert page.page.locator("#tree mark").count() > 0
    page.page.keyboard.press("Escape")
    page.wait_for_hits("1,880 ops")
    page.page.keyboard.type("no such op", delay=10)
    page.wait_for_hits("0 ops")
    assert page.rows() == ["No op matches."]


def test_the_tree_is_folded_by_keys(opened, small):
    page = opened(small)
    tree, keys = page.page.locator("#tree"), page.page.keyboard
    page.page.click("#collapse")
    top = len(page.rows())
    tree.focus()
    assert page.page.locator("#" + tree.get_attribute("aria-activedescendant")).get_attribute("aria-level") == "1"
    keys.press("ArrowRight")
    assert [row.split()[0] for row in page.rows()][1:5] == ["tokens", "block0", "block1", "head"]
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        keys.press(key)
    current = page.page.locator("[aria-selected=true]")
    assert current.get_attribute("aria-expanded") == "true"
    assert [current.get_attribute(f"aria-{name}") for name in ("level", "posinset", "setsize")] == ["2", "2", "4"]
    keys.press("ArrowRight")  # into it
    assert page.page.locator("[aria-selected=true]").get_attribute("aria-level") == "3"
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        keys.press(key)
    assert len(page.rows()) == top
    keys.press("End")
    assert "making.py" in page.page.locator("[aria-selected=true]").inner_text()


def test_groups(opened, small):
    page = opened(small)
    page.page.click("label[for=by-line]")
    assert "making.py" in page.rows()[0]
    assert any("loss = loss_fn(y, logits)" in row for row in page.rows())
    page.page.click("label[for=in-order]")
    assert page.rows()[0].split()[0] == "Less"
    assert page.page.locator("#tree [aria-expanded]").count() == 0


def test_the_table_of_layers_is_folded(opened, small):
    page = opened(small).page
    shown = page.locator("#flow-table tbody tr:visible")
    before = shown.count()
    button = page.get_by_role("button", name="Fold transformer/block0", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "false"
    assert shown.count() == before - 9  # five layers inside, and four inside of attention
    page.keyboard.press("Space")
    assert shown.count() == before


def test_a_box_leads_to_its_ops(opened, small):
    page = opened(small)
    page.page.locator("label[for=depth-1]").click()
    assert page.page.locator("figure.graph:visible").count() == 1
    box = page.page.locator("a.box:visible", has_text="block1")
    box.focus()
    page.page.keyboard.press("Enter")
    assert "in transformer/block1" in page.page.locator("#hits").inner_text()
    assert [row.split()[0] for row in page.rows()][:2] == ["transformer", "block1"]
    assert page.page.evaluate("document.activeElement.id") == "tree"


def colour(page: Any) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_light_and_dark(opened, small):
    light, dark = opened(small, "light").page, opened(small, "dark").page
    assert colour(light) == "rgb(251, 251, 250)"
    assert colour(dark) == "rgb(16, 19, 23)"
    light.click("#theme")
    dark.click("#theme")
    assert colour(light) == "rgb(16, 19, 23)"
    assert colour(dark) == "rgb(251, 251, 250)"


def test_printed_is_a_table_in_place_of_the_list(opened, small):
    page = opened(small).page
    assert not page.locator(".print-only").is_visible()
    page.emulate_media(media="print")
    assert page.locator(".print-only").is_visible()
    assert not page.locator("#tree").is_visible()
    assert not page.locator("header.top").is_visible()
    assert "transformer/block1/attention/key" in page.locator(".print-only").inner_text()


def test_everything_fits_on_paper(opened, small):
    page = opened(small, viewport={"width": 680, "height": 1000}).page  # A4 between margins
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_narrow_screens_do_not_scroll_sideways(opened, small):
    page = opened(small, viewport={"width": 390, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_twenty_thousand_ops_are_fluent(opened, large):
    longest = []
    for _ in range(3):  # what else the machine does makes tasks longer, never shorter
        page = opened(large)
        drive(page)
        longest.append(page.longest_task())
        if longest[-1] < LONGEST:
            return
    pytest.fail(f"the page was blocked for {longest} ms")


def drive(page: Opened) -> None:
    """Search, move, fold and scroll, by real input."""
    keys = page.page.keyboard
    page.page.wait_for_selector("#tree [role=treeitem]")
    keys.press("/")
    keys.type("matmul", delay=40)
    page.wait_for_hits("471 ops")
    keys.press("Escape")
    page.page.click("#expand")
    page.page.locator("#tree").focus()
    for key in ("End", "Home", "PageDown", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        keys.press(key)
    page.page.locator("#tree").hover()
    for _ in range(20):
        page.page.mouse.wheel(0, 4000)
    for name in ("by-line", "in-order", "by-layer"):
        page.page.click(f"label[for={name}]")
    assert len(page.rows()) < 100  # the others are not in the page


def test_a_long_task_would_be_noticed(browser, folder):
    path = folder / "slow.html"
    path.write_text("<button onclick='const t = performance.now(); while (performance.now() - t < 260);'>x</button>")
    page = Opened(browser, path)
    page.page.click("button")
    assert page.longest_task() > LONGEST
    page.close()
