"""Every example runs, and its numbers are those that it claims."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
PICTURES = [name for name in NAMES if "\ndef draw(" in (FOLDER / f"{name}.py").read_text()]


class Ran(NamedTuple):
    """An example after its `main` returned."""

    module: ModuleType
    numbers: dict[str, Any]
    printed: str


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache  # several tests look at one run
def run(name: str) -> Ran:
    module, printed = load(name), io.StringIO()
    with contextlib.redirect_stdout(printed):
        numbers = module.main()
    return Ran(module, numbers, printed.getvalue())


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", NAMES)
def test_runs_and_has_something_to_show(name):
    ran = run(name)
    assert ran.numbers
    assert 1 <= len(ran.printed.splitlines()) <= 12
    assert not re.search(r"\bnan\b", ran.printed)


@pytest.mark.parametrize("name", NAMES)
def test_says_in_one_to_three_sentences_what_is_learned(name):
    sentences = re.findall(r"[.?](?:\s|$)", run(name).module.__doc__)
    assert 1 <= len(sentences) <= 3


@pytest.mark.parametrize("name", NAMES)
def test_fits_on_two_screens(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 95


def test_readme_lists_each_once():
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES


# ------------------------------------------------------------------ pictures


def assert_whole_picture(path: Path) -> None:
    """Hold that a PNG shows more than axes and letters, which are black, and that nothing runs over its edge."""
    image = pytest.importorskip("matplotlib.image").imread(path)[:, :, :3]
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 200, "blank"
    assert (image.max(axis=2) > image.min(axis=2)).mean() > 0.005, "blank"
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert edge.min() == 1.0, "cut off"


@pytest.mark.parametrize("name", PICTURES)
def test_picture(name, tmp_path):
    pytest.importorskip("matplotlib")
    example, numbers, _ = run(name)
    load("_picture").save(example.draw, numbers, tmp_path / "new" / "it.png")
    assert_whole_picture(tmp_path / "new" / "it.png")


def test_a_picture_that_is_blank_or_cut_off_is_noticed(tmp_path):
    pytest.importorskip("matplotlib")
    save = load("_picture").save
    save(lambda figure, numbers: figure.subplots(), {}, tmp_path / "blank.png")
    with pytest.raises(AssertionError, match="blank"):
        assert_whole_picture(tmp_path / "blank.png")

    def too_wide(figure: Any, numbers: dict[str, Any]) -> None:
        line(figure, numbers)
        figure.text(0.9, 0.5, 20 * "wide ")

    save(too_wide, {"heights": range(30)}, tmp_path / "cut.png")
    with pytest.raises(AssertionError, match="cut off"):
        assert_whole_picture(tmp_path / "cut.png")


@pytest.mark.parametrize("name", PICTURES)
def test_picture_in_the_readme(name):
    assert f"(pictures/{name}.png)" in (FOLDER / "README.md").read_text()
    assert_whole_picture(FOLDER / "pictures" / f"{name}.png")


@pytest.mark.parametrize("name", PICTURES)
def test_the_command_line_offers_the_picture(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(FOLDER)  # where a script's own folder is
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert "--picture [PATH]" in capsys.readouterr().out


def line(figure: Any, numbers: dict[str, Any]) -> None:
    figure.subplots().plot(numbers["heights"], linewidth=5.0)


@pytest.mark.parametrize(("given", "expected"), [([], "test_examples.png"), (["mine.png"], "mine.png")])
def test_picture_is_saved_where_asked(given, expected, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    picture = load("_picture")
    monkeypatch.setattr(picture, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example.py", "--picture", *given])
    picture.start(lambda: {"heights": [1.0, 3.0, 2.0]}, line)
    assert [path.name for path in tmp_path.iterdir()] == [expected]
    assert re.search(rf"^picture: .*{expected}$", capsys.readouterr().out)


@pytest.fixture
def no_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_without_matplotlib_it_says_what_to_type_before_it_computes(no_matplotlib, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["example.py", "--picture"])
    ran = []
    with pytest.raises(SystemExit, match=r'needs matplotlib, .*Type: pip install "retrotape\[examples\]"$'):
        load("_picture").start(lambda: ran.append(1) or {}, line)
    assert not ran


def test_without_matplotlib_an_example_runs(no_matplotlib, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["example.py"])
    ran = []
    load("_picture").start(lambda: ran.append(1) or {}, line)
    assert ran == [1]


# ------------------------------------------------------------------ first order


def test_two_tapes():
    numbers = run("two_tapes").numbers
    assert numbers["curved"] == pytest.approx((6.583853, 1.3416147), abs=1e-6)
    assert numbers["straight"] == pytest.approx((3.0, 0.7), abs=1e-6)


def test_ask_in_the_middle():
    numbers = run("ask_in_the_middle").numbers
    assert numbers["dz/dy"] == pytest.approx(0.5403023, abs=1e-6)
    assert numbers["dy/dx"] == 2.0
    assert numbers["dz2/dx"] == pytest.approx(14.7781122, rel=1e-6)
    assert numbers["dz2/dy"] == pytest.approx(7.3890561, rel=1e-6)
    asked, known = numbers["hidden"]
    assert len(asked) == 4
    assert asked == pytest.approx(known, abs=1e-6)


def test_nested():
    numbers = run("nested").numbers
    assert numbers["nested"] == pytest.approx({"dy/dx": 2.0, "dz/dx": 1.0806046, "d²y/dx²": 2.0}, abs=1e-6)
    assert numbers["flat"] == pytest.approx(numbers["nested"], abs=1e-6)


@pytest.mark.parametrize("training", ["one_loss_per_part", "joint_then_a_part"])
def test_two_losses(training):
    numbers = run("two_losses").numbers[training]
    assert numbers["apart"] < 1e-6
    assert numbers["loss"] < numbers["before"]


# ------------------------------------------------------------------ higher orders, and through updates


def test_second_order():
    numbers = run("second_order").numbers
    assert [numbers[name] for name in ("first", "second", "third", "hvp")] == [12.0, 12.0, 6.0, 12.0]
    np.testing.assert_allclose(numbers["hessian"], [[802.0, -400.0], [-400.0, 200.0]], rtol=1e-12)
    np.testing.assert_allclose(numbers["along"], [2.0, 0.0], atol=1e-9)


def test_through_a_step():
    numbers = run("through_a_step").numbers
    assert numbers["one step"] == pytest.approx(-16.0, abs=1e-5)
    for name in ("SGD", "momentum", "Adam", "RMSprop"):
        exact, by_difference = numbers[name]
        assert exact == pytest.approx(by_difference, rel=2e-3), name
    assert numbers["by the first x"] == 4.0
    assert numbers["step by step"] == [0.0, 2.0, 4.0]
    assert numbers["after reset"] == 5.0


def test_pinn_solves_its_equation():
    numbers = run("pinn").numbers
    assert numbers["last"] < 0.01 * numbers["first"]
    assert numbers["error"] < 0.02


# ------------------------------------------------------------------ learning to learn


def test_maml_learns():
    numbers = run("maml").numbers
    assert numbers["last"] < 0.5 * numbers["first"]


def test_maml_adapts_to_a_wave_it_has_never_seen():
    fresh, learned = run("maml").numbers["waves"].values()
    error = float(np.mean((learned["after"] - 1.5 * np.sin(learned["grid"] + 0.3)) ** 2))
    assert learned["losses"][1] == pytest.approx(error)
    assert error < 0.1 * learned["losses"][0]
    assert error < 0.4 * fresh["losses"][1]


def net(params: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """The model of `maml.py` as a pure function of its weights."""
    *hidden, kernel, bias = params
    for inner_kernel, inner_bias in zip(hidden[::2], hidden[1::2], strict=True):
        x = tf.tanh(x @ inner_kernel + inner_bias)
    return x @ kernel + bias


def adapted(params: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor, steps: int, rate: float) -> list[tf.Tensor]:
    for _ in range(steps):
        with tf.GradientTape() as tape:
            tape.watch(params)
            loss = tf.reduce_mean((net(params, x) - y) ** 2)
        grads = tape.gradient(loss, params)
        params = [param - rate * grad for param, grad in zip(params, grads, strict=True)]
    return params


def by_hand(params: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor, steps: int, rate: float) -> tuple[Any, list]:
    """Return the meta-gradient as it has to be written without a tape that sees updates."""
    with tf.GradientTape() as outer:
        outer.watch(params)
        after = adapted(params, x[0], y[0], steps, rate)
        query_loss = tf.reduce_mean((net(after, x[1]) - y[1]) ** 2)
    return query_loss, outer.gradient(query_loss, params)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_maml_has_the_meta_gradient_of_a_functional_version(compiled):
    maml = run("maml").module
    model, rate = maml.make_model(seed=7), 0.05
    inner = maml.keras.optimizers.SGD(rate)
    inner.build(model.trainable_variables)
    start = [tf.constant(value) for value in model.get_weights()]
    x, y = maml.sine_wave(np.random.default_rng(7))
    ask = tf.function(maml.meta_gradient) if compiled else maml.meta_gradient
    loss, grads = ask(model, inner, x, y)
    expected_loss, expected = by_hand(start, x, y, maml.INNER_STEPS, rate)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    for got, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for now, before in zip(model.get_weights(), start, strict=True):
        np.testing.assert_array_equal(now, before)


def test_maml_meta_gradient_is_not_the_first_order_one():
    """The test above must be able to fail: without second derivatives the answer is another one."""
    maml = run("maml").module
    start = [tf.constant(value) for value in maml.make_model(seed=7).get_weights()]
    x, y = maml.sine_wave(np.random.default_rng(7))
    _, second_order = by_hand(start, x, y, maml.INNER_STEPS, 0.05)
    after = adapted(start, x[0], y[0], maml.INNER_STEPS, 0.05)
    _, first_order = by_hand(after, x, y, 0, 0.05)
    gaps = [float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(first_order, second_order, strict=True)]
    assert max(gaps) > 1e-2


def test_learned_rate_finds_a_better_one():
    numbers = run("learned_rate").numbers
    assert numbers["losses"][-1] < 0.5 * numbers["losses"][0]
    assert numbers["rates"][-1] > numbers["rates"][0]


def test_learned_rate_has_the_derivative_of_a_finite_difference():
    example, rate, gap = run("learned_rate").module, 0.004, 4e-5
    _, by_rate = example.run(rate)
    difference = (example.run(rate + gap)[0] - example.run(rate - gap)[0]) / (2.0 * gap)
    assert by_rate == pytest.approx(difference, rel=1e-2)  # single precision


# ------------------------------------------------------------------ models that make data


def critic_step(critic: Any, data: tuple, second_order: bool = True) -> list[tf.Tensor]:
    """Return the gradient of the loss of `wgan_gp.py`, from nested stock tapes."""
    real, fake, mix = data
    between = fake + mix * (real - fake)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(between)
            score = critic(between)
        slope = inner.gradient(score, between)
        slope = slope if second_order else tf.stop_gradient(slope)
        penalty = tf.reduce_mean((tf.norm(slope, axis=1) - 1.0) ** 2)
        loss = tf.reduce_mean(critic(fake) - critic(real)) + run("wgan_gp").module.PENALTY * penalty
    return outer.gradient(loss, critic.trainable_variables, unconnected_gradients="zero")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_wgan_gp_has_the_critic_step_of_nested_stock_tapes(compiled):
    example = run("wgan_gp").module
    example.keras.utils.set_random_seed(3)
    critic, other = (example.make_net(2, 1) for _ in range(2))
    other.set_weights(critic.get_weights())
    data = example.ring(32), tf.random.normal((32, 2)), tf.random.uniform((32, 1))

    def ask(*data: tf.Tensor) -> list[tf.Tensor]:
        return [grad for _, grad in example.critic_grads(critic, *data)[2].items()]

    grads = (tf.function(ask) if compiled else ask)(*data)
    expected = critic_step(other, data)
    for got, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    for model, step in ((critic, grads), (other, expected)):
        example.keras.optimizers.SGD(0.1).apply(step, model.trainable_variables)
    for got, want in zip(critic.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    first_order = critic_step(other, data, second_order=False)
    assert max(float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(first_order, expected, strict=True)) > 1e-2


def test_wgan_gp_makes_the_ring_and_holds_the_steepness():
    numbers = run("wgan_gp").numbers
    made = numbers["made"][max(numbers["made"])]
    assert np.median(np.abs(np.linalg.norm(made, axis=1) - 1.0)) < 0.1
    quarter = np.arctan2(made[:, 1], made[:, 0]) // (np.pi / 2.0)
    assert np.unique(quarter, return_counts=True)[1].min() > 100  # of 1000 in each of four quarters
    assert numbers["near"] > 0.5
    assert numbers["history"][-50:, 1].mean() == pytest.approx(1.0, abs=0.15)


def test_vae_uses_two_of_four_numbers():
    example, numbers, _ = run("vae")
    encoder, _ = numbers["nets"]
    mean, log_std = np.split(encoder(example.blobs(200)).numpy(), 2, axis=1)
    informative = mean.std(axis=0) > 0.5  # told from the encoder alone, without any derivative
    assert informative.sum() == 2
    assert np.exp(log_std)[:, ~informative].mean() == pytest.approx(1.0, abs=0.1)
    assert (numbers["used"][informative] > 1.0).all()
    assert (numbers["used"][~informative] < 0.3).all()
    assert np.mean(numbers["losses"][-50:]) < 0.2 * numbers["losses"][0]


def test_vae_has_the_parts_and_the_jacobian_of_stock_tapes():
    example, numbers, _ = run("vae")
    nets = numbers["nets"]
    images, noise = example.blobs(16), tf.random.normal((16, example.CODE))
    with example.rt.Tape() as tape:
        error, divergence, code, decoded = example.forward(*nets, images, noise)
    weights = nets[0].trainable_variables
    parts = tape.backward_each([error, divergence], weights)
    with tf.GradientTape(persistent=True) as stock:
        stock_error, stock_divergence, *_ = example.forward(*nets, images, noise)
        loss = stock_error + stock_divergence
    for part, target in ((parts[0], stock_error), (parts[1], stock_divergence), (parts[0] + parts[1], loss)):
        for (_, got), want in zip(part.items(), stock.gradient(target, weights), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    with tf.GradientTape() as of_decoder:
        of_decoder.watch(code)
        again = nets[1](code)
    expected = of_decoder.batch_jacobian(again, code)
    np.testing.assert_allclose(tape.batch_jacobian(decoded, code), expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ stock models, explained afterwards


def test_grad_cam_is_that_of_a_sub_model():
    """The known way: build a second model that also gives the activation, and record that with a stock tape."""
    example, numbers, _ = run("grad_cam")
    model, pixels = numbers["model"], numbers["pixels"]
    layer = model.get_layer("last_conv")
    both = example.keras.Model(model.inputs[0], [layer.output, model.outputs[0]])
    for kind in range(len(example.KINDS)):
        with tf.GradientTape() as tape:
            features, scores = both(pixels)
            score = scores[:, kind]
        grads = tape.gradient(score, features).numpy()
        expected = np.maximum(np.einsum("nc,nyxc->nyx", grads.mean(axis=(1, 2)), features), 0.0)
        assert expected.max() > 0.01
        np.testing.assert_allclose(numbers["heat"][kind], expected, rtol=1e-3, atol=1e-6)


def test_grad_cam_finds_the_shapes():
    hits = run("grad_cam").numbers["hits"]
    assert min(hits.values()) > 0.9
    heat = run("grad_cam").numbers["heat"]
    assert np.corrcoef(heat[0].ravel(), heat[1].ravel())[0, 1] < 0.2  # not one map for both


def contrast(example: ModuleType, scores: Any, other: int) -> Any:
    return scores[..., example.DIGIT] - scores[..., other]


def test_integrated_gradients_are_complete_at_every_layer():
    example, numbers, _ = run("integrated_gradients")
    image = numbers["image"][None]
    for other in example.OTHERS:
        ends = [contrast(example, numbers["model"](end).numpy()[0], other) for end in (image, 0.0 * image)]
        change = ends[0] - ends[1]
        assert abs(change) > 1.0
        assert numbers["change"][other] == pytest.approx(change, rel=1e-4)
        assert len(numbers["found"][other]) == 3
        assert [each.sum() for each in numbers["found"][other]] == pytest.approx([change] * 3, rel=0.01)


def test_integrated_gradients_are_those_of_stock_tapes():
    """Point by point in the middle of each step, and for a hidden layer with the rest of the model called by itself."""
    example, numbers, _ = run("integrated_gradients")
    flatten, first, second, last = numbers["model"].layers
    image = numbers["image"][None]
    alpha = (np.arange(400, dtype="float32") + 0.5)[:, None, None] / 400.0
    middle, between = tf.constant(alpha * image), first(flatten(tf.constant(alpha * image)))
    ends = [first(flatten(shift * image)) for shift in (alpha - 0.5 / 400.0, alpha + 0.5 / 400.0)]
    for other in example.OTHERS:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([middle, between])
            by_pixels = contrast(example, numbers["model"](middle), other)
            by_layer = contrast(example, last(second(between)), other)
        pixels = image[0] * tape.gradient(by_pixels, middle).numpy().mean(axis=0)
        layer = tf.reduce_sum(tape.gradient(by_layer, between) * (ends[1] - ends[0]), axis=0)
        np.testing.assert_allclose(numbers["found"][other][0], pixels, atol=0.05)
        np.testing.assert_allclose(numbers["found"][other][1], layer, atol=0.05)


def test_integrated_gradients_name_the_bar_in_which_the_digits_differ():
    example, numbers, _ = run("integrated_gradients")
    for other in example.OTHERS:
        (bar,) = [b for b in range(7) if example.LIT[example.DIGIT][b] != example.LIT[other][b]]
        by_bar = [(numbers["found"][other][0] * mask).sum() for mask in example.MASKS]
        assert np.argmax(by_bar) == bar
        assert by_bar[bar] > 2.0 * np.sort(by_bar)[-2]


# ------------------------------------------------------------------ which data do harm


def test_data_weights_tell_wrong_labels_from_right_ones():
    example, numbers, _ = run("data_weights")
    assert set(numbers["order"][: len(example.WRONG)]) == set(example.WRONG)
    assert (numbers["harm"][example.WRONG] > 0.0).all()


@pytest.mark.parametrize("example", [8, 27, 0])
def test_data_weights_have_the_derivative_of_a_finite_difference(example):
    module, numbers, _ = run("data_weights")
    gap = 1e-3 * tf.one_hot(example, module.EXAMPLES, dtype=tf.float64)
    ones = tf.ones_like(gap)
    more, less = (float(module.train(ones + sign * gap)[1]) for sign in (1.0, -1.0))
    assert numbers["harm"][example] == pytest.approx((more - less) / 2e-3, rel=1e-4)


# ------------------------------------------------------------------ several tapes, and parts of a batch

SHORT = ["two_submodels", "chain_of_tapes", "gan", "accumulation"]


@pytest.mark.parametrize("name", SHORT)
def test_is_short(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) < 50


def test_two_submodels_have_the_weights_of_one_stock_tape():
    numbers = run("two_submodels").numbers
    assert numbers["apart"] < 1e-6
    assert numbers["last"] < 0.5 * numbers["first"]


def test_two_submodels_are_clipped_as_a_whole(monkeypatch):
    """The bound must bite, or the test above says nothing about it."""
    example = load("two_submodels")
    bounded, _ = example.train(stock=True)
    monkeypatch.setattr(example, "BOUND", 100.0)
    free, _ = example.train(stock=True)
    assert max(float(np.abs(a - b).max()) for a, b in zip(bounded, free, strict=True)) > 1e-3


def test_chain_of_tapes_is_the_chain_rule():
    numbers = run("chain_of_tapes").numbers
    assert numbers["apart"] < 1e-12
    assert numbers["by hand"] < 1e-12
    assert numbers["wrong by"] > 1e-2
    assert numbers["possible"] is False


def test_gan_comes_to_make_what_the_data_are():
    example, numbers, _ = run("gan")
    assert numbers["mean"] == pytest.approx(example.MEAN, abs=0.3)
    assert numbers["std"] == pytest.approx(example.STD, abs=0.3)


def test_accumulation_has_the_weights_of_the_whole_batch():
    numbers = run("accumulation").numbers
    assert numbers["apart"] < 1e-5
    assert numbers["last"] < 0.5 * numbers["first"]


def test_find_the_nan():
    numbers, printed = run("find_the_nan").numbers, run("find_the_nan").printed
    broken = numbers["broken"]
    assert (broken.op, broken.backward, broken.cause.name) == ("Sqrt", True, "NORM_AT_ZERO")
    assert "tf.norm(net(left) - net(right), axis=-1)" in broken.code
    assert "+ 1e-12" in printed
    assert numbers["fixed"] is None
    assert 0.0 < numbers["norm"] < 10.0


def test_find_the_nan_is_short():
    assert len((FOLDER / "find_the_nan.py").read_text().splitlines()) < 30


# ------------------------------------------------------------------ the tape explains itself


def test_why_none_names_the_op_and_the_line():
    example, found, printed = run("why_none")
    lines = (FOLDER / "why_none.py").read_text().splitlines()
    assert len(lines) < 30
    cut = found["accuracy"].cut
    assert (found["accuracy"].verdict.name, cut.op) == ("INTEGER", "ArgMax")
    assert "tf.argmax" in lines[cut.frame.line - 1]
    assert cut.frame.file == example.__file__
    assert f"why_none.py:{cut.frame.line}" in printed
    assert (found["loss"].verdict.name, found["loss"].cut.op) == ("ZERO", "Relu")
