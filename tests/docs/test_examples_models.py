"""The examples with models that make data, or that are explained afterwards: their numbers, by other routes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from docs.running import PICTURES, assert_picture, run, run_in

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


def test_mislabelled_finds_most_wrong_labels():
    numbers = run("mislabelled").numbers
    assert numbers["precision"] >= 0.8
    assert len(numbers["wrong"]) < 0.11 * len(numbers["label"])


def test_mislabelled_has_the_influence_of_stock_tapes():
    """The gradient of each example, the Hessian and the gradient on clean data, all on one flat vector of weights."""
    example, numbers, _ = run("mislabelled")
    first, second = numbers["model"].layers
    shapes = [weight.shape for weight in numbers["model"].trainable_variables]
    sizes = [int(np.prod(shape)) for shape in shapes]
    flat = tf.concat([tf.reshape(tf.convert_to_tensor(w), [-1]) for w in (*first.weights, *second.weights)], 0)

    def losses(weights: tf.Tensor, x: np.ndarray, label: np.ndarray) -> tf.Tensor:
        parts = [tf.reshape(p, s) for p, s in zip(tf.split(weights, sizes), shapes, strict=True)]
        logits = tf.tanh(x @ parts[0] + parts[1]) @ parts[2] + parts[3]
        return tf.nn.sigmoid_cross_entropy_with_logits(label, logits[:, 0])

    with tf.GradientTape() as outer:
        outer.watch(flat)
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(flat)
            each = losses(flat, numbers["x"], numbers["label"])
            whole = tf.reduce_mean(each)
            clean = tf.reduce_mean(losses(flat, *numbers["clean"]))
        slope = inner.gradient(whole, flat)
    hessian = outer.jacobian(slope, flat).numpy() + example.DAMPING * np.eye(sum(sizes))
    harm = -inner.jacobian(each, flat).numpy() @ np.linalg.solve(hessian, inner.gradient(clean, flat).numpy())
    np.testing.assert_allclose(numbers["harm"], harm, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in run_in(__file__) if name in PICTURES])
def test_picture(name, tmp_path):
    assert_picture(name, tmp_path)
