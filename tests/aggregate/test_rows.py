from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import NonfiniteRowError, ShapeMismatchError, TapeUseError, UnknownSourceError


@pytest.fixture
def trunk() -> tf.Variable:
    return tf.Variable([[1.0, -2.0], [0.5, 3.0]], name="trunk")


@pytest.fixture
def heads() -> list[tf.Variable]:
    return [tf.Variable([1.0, -1.0], name="head0"), tf.Variable([-2.0, 0.5], name="head1")]


def recorded(trunk, heads):
    x = tf.constant([[1.0, 2.0], [0.0, -1.0], [3.0, 1.0]])
    with rt.Tape() as tape:
        hidden = tf.tanh(x @ trunk)
        losses = {f"task{k}": tf.reduce_sum((hidden @ head[:, None]) ** 2) for k, head in enumerate(heads)}
    return tape, losses


def flat(grads: rt.Gradients, keys) -> np.ndarray:
    return np.concatenate([np.ravel(grads[key]) for key in keys])


def test_a_sequence_with_names(trunk, heads):
    tape, losses = recorded(trunk, heads)
    rows = tape.backward_each(losses)
    assert rows.names == ("task0", "task1")
    assert len(rows) == 2
    assert [grads == tape.backward(loss) for grads, loss in zip(rows, losses.values(), strict=True)] == [True, True]
    assert rows["task1"] == rows[1] == rows[-1]
    assert rows[0] != rows[1]
    assert rows[1:].names == ("task1",)
    assert rows == [rows[0], rows[1]]
    assert rows != [rows[1], rows[0]]
    assert [name for name, _ in rows.items()] == ["task0", "task1"]
    with pytest.raises(KeyError, match=r"No loss is called 'task2'; there are 'task0', 'task1'"):
        rows["task2"]
    with pytest.raises(IndexError):
        rows[2]


def test_names_of_a_list_are_positions(trunk, heads):
    tape, losses = recorded(trunk, heads)
    rows = tape.backward_each(list(losses.values()))
    assert rows.names == (0, 1)
    assert rows.losses is not None
    np.testing.assert_array_equal([float(loss) for loss in rows.losses], [float(loss) for loss in losses.values()])


def test_integers_that_are_names_come_before_positions():
    w = tf.Variable(2.0)
    with rt.Tape() as tape:
        losses = {1: w * 3.0, 0: w * 5.0}
    rows = tape.backward_each(losses)
    assert float(rows[0][w]) == 5.0
    assert float(rows[1][w]) == 3.0


def test_the_gramian_is_over_shared_variables(trunk, heads):
    tape, losses = recorded(trunk, heads)
    rows = tape.backward_each(losses)
    matrix = np.float64([flat(grads, [trunk]) for grads in rows])
    np.testing.assert_allclose(rows.gramian(), matrix @ matrix.T, rtol=1e-12)
    np.testing.assert_allclose(tape.gramian(losses), matrix @ matrix.T, rtol=1e-12)
    everything = [trunk, *heads]
    matrix = np.float64([flat(grads, everything) for grads in rows])
    np.testing.assert_allclose(rows.gramian(everything), matrix @ matrix.T, rtol=1e-12)
    norms = np.sqrt(np.diag(matrix @ matrix.T))
    np.testing.assert_allclose(rows.cosines(everything), matrix @ matrix.T / np.outer(norms, norms), rtol=1e-12)
    with pytest.raises(UnknownSourceError, match="other"):
        rows.gramian([tf.Variable(1.0, name="other")])


def test_the_gramian_of_a_warm_loop(trunk, heads):
    for _ in range(5):
        tape, losses = recorded(trunk, heads)
        found = tape.gramian(losses)
        assert tape.gramian(losses, [heads[0]]).numpy().tolist() == [[0.0, 0.0], [0.0, 0.0]]
        matrix = np.float64([flat(tape.backward(loss), [trunk]) for loss in losses.values()])
        np.testing.assert_allclose(found, matrix @ matrix.T, rtol=1e-12)
        trunk.assign_add(tf.ones_like(trunk) * 0.1)


def test_gradients_of_several_tapes_are_rows():
    a, b = tf.Variable(3.0, name="a"), tf.Variable(2.0, name="b")
    with rt.Tape() as one:
        first = a * b
    with rt.Tape() as two:
        second = a * a
    rows = rt.Rows({"first": one.backward(first), "second": two.backward(second)})
    assert [column.key.name for column in rows.columns()] == ["a:0", "b:0"]
    combined = rt.aggregate.Sum()(rows)
    assert (float(combined[a]), float(combined[b])) == (8.0, 3.0)
    assert [key.name for key in combined.shared] == ["a:0"]


def test_positions_of_a_part_are_its_own():
    w = tf.Variable(1.0)
    with rt.Tape() as tape:
        losses = [w * factor for factor in (1.0, 2.0, 3.0, 4.0)]
    part = tape.backward_each(losses)[1:3]
    assert [float(part[place][w]) for place in (0, 1, -1)] == [2.0, 3.0, 3.0]
    assert [float(row[w]) for row in reversed(part)] == [3.0, 2.0]
    assert part != [1.0, 2.0]
    with pytest.raises(TypeError, match="Rows takes names from the mapping; got names= as well"):
        rt.Rows({"a": part[0]}, names=["b"])


def test_what_is_not_rows():
    with pytest.raises(TypeError, match=r"Rows takes Gradients, got float: `rt.Rows\(\[tape.backward\(one\)"):
        rt.Rows([1.0])
    with pytest.raises(ShapeMismatchError, match=r"Got the names \('a', 'a'\) for 2 losses; give each a name"):
        rt.Rows([rt.Gradients([])] * 2, ["a", "a"])
    with pytest.raises(ShapeMismatchError, match="Got 1 values of losses for 2 losses; give one for each"):
        rt.Rows([rt.Gradients([])] * 2, losses=[1.0])
    with pytest.raises(ShapeMismatchError, match="Got no rows to combine; give the gradients of one loss or more"):
        rt.aggregate.Sum()([])
    with pytest.raises(ValueError, match="nonfinite= must be 'raise' or 'keep', got 'drop'"):
        rt.aggregate.Sum()([rt.Gradients([])], nonfinite="drop")


# ------------------------------------------------------------------ many rows


@pytest.fixture
def examples():
    rng = np.random.default_rng(0)
    w, b = tf.Variable(rng.normal(size=(5, 3)).astype("f"), name="w"), tf.Variable(tf.zeros([3]), name="b")
    x, y = rng.normal(size=(40, 5)).astype("f"), rng.normal(size=(40, 3)).astype("f")
    with rt.Tape() as tape:
        losses = tf.reduce_sum((tf.tanh(x @ w + b) - y) ** 2, 1)
    return tape, losses, [w, b]


@pytest.mark.parametrize("chunk", [None, 7, 40, 100])
def test_a_long_vector_of_losses(examples, chunk):
    tape, losses, variables = examples
    rows = tape.backward_each(losses, chunk=chunk)
    assert len(rows) == 40
    for number in (0, 17, 39):
        seed = tf.one_hot(number, 40)
        alone = tape.backward(losses, variables, output_gradients=seed)
        np.testing.assert_allclose(flat(rows[number], variables), flat(alone, variables), rtol=1e-5, atol=1e-6)
    mean = rt.aggregate.Mean()(rows)
    whole = flat(tape.backward(losses), variables)  # the gradient of a vector is that of its sum
    np.testing.assert_allclose(flat(mean, variables), whole / 40.0, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_list_in_chunks(trunk, heads, chunk):
    tape, losses = recorded(trunk, heads * 3)
    whole, parts = tape.backward_each(losses), tape.backward_each(losses, chunk=chunk)
    assert parts.names == whole.names
    assert parts == whole


def test_chunks_of_nothing(trunk, heads):
    tape, losses = recorded(trunk, heads)
    with pytest.raises(ValueError, match="chunk= takes a number of losses, one at least; got 0"):
        tape.backward_each(losses, chunk=0)


def test_stacked_gradients_are_rows(examples):
    tape, losses, variables = examples
    rows = rt.Rows.from_stacked(variables, tape.per_example(losses, variables))
    other = tape.backward_each(losses)
    np.testing.assert_allclose(rows.gramian(), other.gramian(), rtol=1e-6)
    with pytest.raises(ShapeMismatchError, match=r"Got gradients of shape \(40, 3\) for w of shape \(5, 3\)"):
        rt.Rows.from_stacked([variables[0]], [tape.per_example(losses, variables[1])])
    with pytest.raises(ShapeMismatchError, match="Got 2 variables and 1 tensors; give one tensor for each variable"):
        rt.Rows.from_stacked(variables, [tape.per_example(losses, variables[0])])


def test_the_noise_scale(examples):
    tape, losses, variables = examples
    matrix = np.float64([flat(row, variables) for row in tape.backward_each(losses)])
    spread = np.trace(np.cov(matrix.T))
    square = np.sum(matrix.mean(0) ** 2) - spread / len(matrix)
    np.testing.assert_allclose(float(tape.backward_each(losses).noise_scale()), spread / square, rtol=1e-6)
    with pytest.raises(ShapeMismatchError, match="Got 1 rows; the noise scale needs two at least"):
        tape.backward_each([losses]).noise_scale()
    opposite = rt.Rows([rt.Gradients([(variables[1], tf.ones([3]) * sign)]) for sign in (1.0, -1.0)])
    assert float(opposite.noise_scale()) == np.inf


# ------------------------------------------------------------------ conflicts


def test_conflicts_as_a_table(trunk, heads):
    tape, losses = recorded(trunk, heads)
    conflicts = tape.backward_each(losses).conflicts()
    cosine = float(tape.backward(losses["task0"], [trunk]).cosine(tape.backward(losses["task1"], [trunk])))
    assert conflicts.cosines[0, 1] == pytest.approx(cosine, abs=1e-6)
    assert (cosine < 0) == (len(conflicts) == 1)
    assert f"{cosine:.2f}" in repr(conflicts)


def test_conflicts_of_many_losses_are_the_worst_pairs():
    w = tf.Variable(tf.ones([20]))
    with rt.Tape() as tape:
        losses = [w[k] - 0.5 * w[(k + 1) % 20] for k in range(20)]
    conflicts = tape.backward_each(losses).conflicts()
    assert len(conflicts) == 20
    assert repr(conflicts).splitlines()[0].split("  ")[0] == "loss"
    assert len(repr(conflicts).splitlines()) == 18
    assert conflicts.summary().startswith("20 of 190 pairs conflict; the worst is 0 and 1, with a cosine of -0.40")


def test_html_of_conflicts_is_escaped():
    w = tf.Variable([1.0, 1.0])
    with rt.Tape() as tape:
        losses = {"<script>": w[0], "-0.5": -w[0] + w[1]}
    page = tape.backward_each(losses)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("background:rgba(200,40,40,0.43)") == 2


def test_the_heat_map():
    matplotlib = pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    matplotlib.use("agg")
    w = tf.Variable([1.0, 1.0])
    with rt.Tape() as tape:
        losses = {"one": w[0], "two": -w[0] + w[1]}
    axes = tape.backward_each(losses).conflicts().plot()
    np.testing.assert_allclose(axes.images[0].get_array(), [[1.0, -(0.5**0.5)], [-(0.5**0.5), 1.0]], rtol=1e-6)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["one", "two"]


def test_conflicts_inside_a_function():
    w = tf.Variable([1.0, 1.0])

    @tf.function
    def run():
        with rt.Tape() as tape:
            losses = [w[0], -w[0] + w[1]]
        rows = tape.backward_each(losses)
        with pytest.raises(TapeUseError, match="Conflicts are shown in eager code; inside a"):
            rows.conflicts()
        return rows.cosines()

    np.testing.assert_allclose(run(), [[1.0, -(0.5**0.5)], [-(0.5**0.5), 1.0]], rtol=1e-6)


# ------------------------------------------------------------------ combined


def test_variables_of_one_loss_get_its_gradient(trunk, heads):
    tape, losses = recorded(trunk, heads)
    rows = tape.backward_each(losses)
    combined = rt.aggregate.Mean()(rows)
    np.testing.assert_allclose(combined[trunk], (rows[0][trunk] + rows[1][trunk]) / 2.0, rtol=1e-6)
    for row, head in zip(rows, heads, strict=True):
        np.testing.assert_array_equal(combined[head], row[head])
    together = rt.aggregate.Mean()(rows, shared=[trunk, *heads])
    np.testing.assert_allclose(together[heads[0]], rows[0][heads[0]] / 2.0, rtol=1e-6)
    apart = rt.aggregate.Mean()(rows, shared=[])
    np.testing.assert_allclose(apart[trunk], rows[0][trunk] + rows[1][trunk], rtol=1e-6)
    assert apart.shared == ()


def test_shared_variables_by_name(tmp_path, trunk, heads):
    tape, losses = recorded(trunk, heads)
    tape.save(tmp_path / "a.tape", losses)
    loaded = rt.load(tmp_path / "a.tape")
    rows = loaded.backward_each(["task0", "task1"], ["trunk", "head0"])
    np.testing.assert_allclose(rows.gramian(["trunk"]), tape.gramian(losses), rtol=1e-6)
    combined = rows.combine("mean", shared=["head0"])
    np.testing.assert_allclose(combined["head0"], tape.gradient(losses["task0"], heads[0]) / 2.0, rtol=1e-6)
    with pytest.raises(UnknownSourceError, match="no gradient with respect to 'trunc' here"):
        rows.gramian(["trunc"])


def test_missing_gradients_keep_their_reasons(trunk, heads):
    idle = tf.Variable(1.0, name="idle")
    tape, losses = recorded(trunk, heads)
    rows = tape.backward_each(losses, [trunk, idle, *heads])
    combined = rt.aggregate.UPGrad()(rows)
    assert combined.missing == (idle,)
    assert combined.why(idle) == rows[0].why(idle) == "it was not read on this tape"
    assert [key is wanted for key, wanted in zip(combined.keys(), [trunk, idle, *heads], strict=True)] == [True] * 4


def test_the_result_tells_how_it_was_made(trunk, heads):
    tape, losses = recorded(trunk, heads)
    combined = tape.backward_each(losses).combine("mean")
    assert {name: float(weight) for name, weight in combined.weights.items()} == {"task0": 0.5, "task1": 0.5}
    assert combined.converged
    assert repr(combined).splitlines()[-1] == "Mean(); weights task0: 0.5, task1: 0.5; 1 of 3 variables are shared"
    assert "Mean(); weights task0: 0.5" in combined._repr_html_()
    assert not isinstance(combined.clip(1.0), rt.Combined)
    assert isinstance(2.0 * combined, rt.Gradients)


def test_options_of_combine(trunk, heads):
    tape, losses = recorded(trunk, heads)
    rows = tape.backward_each(losses)
    by_name = rows.combine("upgrad", preference=[1.0, 3.0], shared=[trunk])
    assert by_name == rt.aggregate.UPGrad(preference=[1.0, 3.0])(rows, shared=[trunk])
    with pytest.raises(
        TypeError, match=r"Got preference for UPGrad\(\); give the parameters where you make the method"
    ):
        rows.combine(rt.aggregate.UPGrad(), preference=[1.0, 3.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite(bad):
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        losses = {"good": w[0] + w[1], "bad": w[0] * bad}
    rows = tape.backward_each(losses)
    with pytest.raises(
        NonfiniteRowError, match=r"The gradient of the loss 'bad' is not finite.*first_nonfinite"
    ) as info:
        rt.aggregate.UPGrad()(rows)
    assert info.value.names == ("bad",)
    kept = rt.aggregate.UPGrad()(rows, nonfinite="keep")
    assert np.isnan(kept[w]).all()


def test_rows_that_are_not_finite_in_a_function():
    w = tf.Variable([1.0, 2.0])

    def run(bad, nonfinite):
        with rt.Tape() as tape:
            losses = {"good": w[0] + w[1], "bad": w[0] * bad}
        return rt.aggregate.UPGrad()(tape.backward_each(losses), nonfinite=nonfinite)[w]

    function = tf.function(run)
    np.testing.assert_allclose(function(tf.constant(2.0), "raise"), [1.5, 0.5], rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="The gradient of a loss is not finite"):
        function(tf.constant(np.nan), "raise")
    assert np.isnan(function(tf.constant(np.nan), "keep")).all()
    assert np.isnan(tf.function(run, jit_compile=True)(tf.constant(np.nan), "raise")).all()


def test_the_gramian_of_a_warm_loop_is_compiled():
    w, v = tf.Variable([1.0, 2.0]), tf.Variable([0.5, -1.0])
    for _ in range(6):
        with rt.Tape(persistent=True) as tape:
            losses = [tf.reduce_sum(w * v), tf.reduce_sum(tf.sin(w)), tf.reduce_sum(w * w * v)]
        found = tape.gramian(losses, [w, v])
    assert tape.why_not_compiled() is None
    np.testing.assert_allclose(found, tape.backward_each(losses, [w, v]).gramian(), rtol=1e-6)
