"""More statements of a step: layers and optimizers of Keras, arguments, updates, random numbers, effects, errors."""

from __future__ import annotations

from laws.playback_features import READS, SHAPES, STATE, Feature
from laws.playback_objects import FUNCTIONS, LAZY, OBJECTS

_LAYER = "l$k = keras.layers.%s\nl$k(tf.zeros([2, 3]))\nstate.append(l$k)"
_APPLY = """with rt.Tape() as t$k:
    loss$k = tf.reduce_mean((l$k($a) - $b) ** 2)
q$k.apply(t$k.gradient(loss$k, l$k.trainable_variables), l$k.trainable_variables)
$o = $a * tf.tanh(loss$k)"""
_OPTIMIZER = (
    _LAYER % "Dense(3)"
) + "\nq$k = keras.optimizers.%s\nq$k.build(l$k.trainable_variables)\nstate.append(q$k)"

KERAS = [
    Feature(
        "dense",
        "$o = l$k($a)",
        make=_LAYER % "Dense(3)",
        turns=(
            "l$k.kernel.assign(l$k.kernel * 0.5)",
            "l$k.activation = tf.sin",
            "l$k.set_weights([-w for w in l$k.get_weights()])",
        ),
    ),
    Feature(
        "dropout",
        "$o = l$k($a, training=True)",
        make=_LAYER % "Dropout(0.5, seed=3)",
        turns=("l$k.rate = 0.2", "l$k.rate = 0.0", "l$k.seed_generator.state.assign([5, 0])"),
    ),
    Feature(
        "batch normalization",
        "$o = l$k($a, training=n < 3)",
        make=_LAYER % "BatchNormalization()",
        turns=("l$k.momentum = 0.5", "l$k.trainable = not l$k.trainable", "l$k.epsilon = 0.1"),
    ),
    Feature(
        "trainable",
        "with rt.Tape() as t$k:\n    s$k = tf.reduce_sum(l$k($a))\nfor w$k in l$k.trainable_variables:\n"
        "    w$k.assign_sub(0.01 * t$k.gradient(s$k, w$k))\n$o = $a * s$k",
        make=_LAYER % "Dense(3)",
        turns=("l$k.trainable = not l$k.trainable",),
    ),
    Feature(
        "layers of a model",
        "$o = l$k($a)",
        make=_LAYER % "Dense(3)" + "\nl$k = keras.Sequential([l$k])\nl$k(tf.zeros([2, 3]))",
        turns=("l$k.add(keras.layers.Activation('tanh'))", "l$k.pop() if len(l$k.layers) > 1 else None"),
    ),
    Feature(
        "layer of the user",
        "$o = l$k($a)",
        "class L$k(keras.layers.Layer):\n    by, table = 2.0, [1.0]\n"
        "    def call(self, one):\n        return one * self.by * self.table[0]",
        "l$k = L$k()",
        ("l$k.by = 3.0", "L$k.table[0] = 0.5", "l$k.call = tf.sin"),
    ),
    Feature(
        "loss of a layer",
        "$o = l$k($a) + sum(l$k.losses)",
        make=_LAYER % "Dense(3, kernel_regularizer='l2')",
        turns=("vars(l$k.kernel_regularizer or l$k).update(l2=0.5)", "l$k.kernel_regularizer = None"),
    ),
    Feature(
        "sgd",
        _APPLY,
        make=_OPTIMIZER % "SGD(0.1)",
        turns=(
            "q$k.learning_rate = 0.05",
            "q$k.learning_rate.assign(0.3)",
            "q$k.clipnorm = 0.1",
            "l$k.trainable_variables[0].assign(tf.ones([3, 3]))",
        ),
    ),
    Feature(
        "momentum",
        _APPLY,
        make=_OPTIMIZER % "SGD(0.1, momentum=0.9)",
        turns=("q$k.momentum = 0.5", "q$k.nesterov = True", "q$k.global_clipnorm = 0.1"),
    ),
    Feature(
        "adam",
        _APPLY,
        make=_OPTIMIZER % "Adam(0.1)",
        turns=("q$k.beta_1 = 0.5", "q$k.epsilon = 0.1", "q$k.weight_decay = 0.1", "q$k.iterations.assign(0)"),
    ),
    Feature(
        "schedule",
        _APPLY,
        make=_OPTIMIZER % "SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5))",
        turns=("q$k._learning_rate.decay_rate = 0.9",),
    ),
    Feature(
        "optimizer that is replaced",
        _APPLY,
        make=_OPTIMIZER % "SGD(0.1)",
        turns=("nonlocal q$k\nq$k = keras.optimizers.Adam(0.1)\nstate.append(q$k)",),
    ),
    Feature(
        "variable that is replaced in a layer",
        "$o = l$k($a)",
        make=_LAYER % "Dense(3)",
        turns=("vars(l$k)['_kernel'] = keras.Variable(tf.ones([3, 3]))",),
        plays=False,
    ),
    Feature(
        "epsilon of Keras",
        "$o = $a / (1.0 + keras.config.epsilon() * 1e7)",
        turns=("keras.config.set_epsilon(1e-6)", "keras.config.set_epsilon(1e-7)"),
        plays=False,
    ),
    Feature(
        "policy of Keras",
        "$o = tf.cast(h$k(tf.cast($a, keras.config.dtype_policy().compute_dtype)), tf.float32)",
        "h$k = tf.sin",
        turns=("keras.config.set_dtype_policy('mixed_float16')", "keras.config.set_dtype_policy('float32')"),
        plays=False,
    ),
    Feature(
        "metric",
        "m$k.update_state($a)\n$o = $a * m$k.result()",
        make="m$k = keras.metrics.Mean()\nstate.append(m$k)",
        turns=("m$k.reset_state()",),
    ),
]

# ------------------------------------------------------------------ arguments, constants, results

RESULTS = [
    Feature("whole number", "$o = $a * n"),
    Feature("repetitions", "$o = $a\nfor _ in range(n):\n    $o = tf.sin($o) + $b"),
    Feature(
        "mode", "$o = tf.reduce_sum($a, 0, keepdims=True) if mode == 'sum' else tf.reduce_mean($a, 0, keepdims=True)"
    ),
    Feature("constant", "$o = $a * tf.constant([1.0, 2.0, 0.5]) + tf.ones_like($b) - tf.eye(3)[1]"),
    Feature("constant of a shape", "$o = $a + tf.reshape(tf.range($b.shape[0], dtype=tf.float32), [-1, 1])"),
    Feature("input that is returned", "$o = $a\nfound['x$k'], found['y$k'] = x, y"),
    Feature("constant that is returned", "$o = $a\nfound['constant$k'] = tf.constant([1, 2])\nfound['none$k'] = None"),
    Feature(
        "tensor of the closure that is returned",
        "$o = $a\nfound['c$k'] = c$k",
        make="c$k = tf.constant([1, 2])",
        turns=("nonlocal c$k\nc$k = tf.constant([3, 4])",),
    ),
    Feature("variable that is returned", "$o = $a * $v\n$v.assign_sub([0.1, 0.0, 0.0])\nfound['v$k'] = $v"),
    Feature(
        "values of a variable over time",
        "b$k = tf.identity($v)\n$v.assign_add([0.1, 0.0, 0.2])\n"
        "$o = $a * b$k\nfound['before$k'], found['after$k'] = b$k, $v * 1.0",
    ),
    Feature("Python values that are returned", "$o = $a\nfound['python$k'] = (n, mode, [n + 1], {'n': n}, 2.5)"),
    Feature("integers", "$o = $a + tf.cast(tf.argmax($b, 1)[:, None] * n, tf.float32)"),
    Feature("strings", "$o = $a * tf.cast(tf.strings.length(tf.strings.as_string($b, precision=1)), tf.float32) * 0.1"),
    Feature("double precision", "$o = tf.cast(tf.sin(tf.cast($a, tf.float64)) * 2.0, tf.float32)"),
    Feature(
        "custom gradient",
        "with rt.Tape() as t$k:\n    t$k.watch($a)\n    s$k = h$k($a)\n$o = t$k.gradient(s$k, $a)",
        "G$k = [2.0]\n@tf.custom_gradient\ndef h$k(one):\n    return tf.sin(one), lambda dy: dy * G$k[0]",
        turns=("G$k[0] = 3.0",),
    ),
    Feature(
        "gradient",
        "with tf.GradientTape() as t$k:\n    t$k.watch($a)\n    s$k = tf.sin($a) * $b\n$o = t$k.gradient(s$k, $a)",
    ),
    Feature(
        "second derivative",
        "with rt.Tape() as t$k:\n    t$k.watch($a)\n    s$k = tf.sin($a) ** 3\n"
        "    g$k = t$k.gradient(s$k, $a)\n$o = t$k.gradient(g$k, $a)",
    ),
    Feature(
        "gradient that is none",
        "with rt.Tape() as t$k:\n    s$k = tf.reduce_sum(tf.sin($a))\nfound['none$k'] = t$k.gradient(s$k, $v)\n$o = $a",
    ),
    Feature(
        "function", "$o = h$k($a)", make="h$k = tf.function(lambda one: tf.sin(one) * variables[0], autograph=False)"
    ),
    Feature(
        "function with an update",
        "$o = h$k($a)",
        make="h$k = tf.function(lambda one: one * variables[0].assign_add([0.1, 0.0, 0.0]), autograph=False)",
    ),
    Feature(
        "function with AutoGraph",
        "$o = h$k($a)",
        "@tf.function\ndef h$k(one):\n    if tf.reduce_sum(one) > 0.0:\n        return one * 2.0\n    return -one",
    ),
]

# ------------------------------------------------------------------ updates, random numbers

UPDATES = [
    Feature(
        "rows of a variable",
        "with rt.Tape() as t$k:\n    s$k = tf.reduce_sum(tf.gather(v$k, tf.argmax($b, 1)) ** 2)\n"
        "v$k.assign_sub(0.1 * tf.convert_to_tensor(t$k.gradient(s$k, v$k)))\n$o = $a * tf.tanh(s$k)",
        make="v$k = tf.Variable(tf.ones([3, 3]))\nstate.append(v$k)",
    ),
    Feature("assign", "$v.assign(tf.tanh($v + $b[0]))\n$o = $a * $v"),
    Feature(
        "assign on a path",
        "if $b[0, 0] > 0.0:\n    $v.assign($v * 0.5)\n$o = $a * $v",
        turns=("variables[0].assign([1.0, -1.0, 0.5])", "variables[1].assign_add([0.1, 0.1, 0.1])"),
    ),
    Feature("scatter", "$v.scatter_nd_update([[1]], [tf.tanh($b[0, 0])])\n$o = $a + $v"),
    Feature("slice", "$v[1:2].assign(tf.tanh($b[0, :1]))\n$o = $a + $v"),
    Feature(
        "variable of the call",
        "w$k = tf.Variable(tf.tanh($a))\nw$k.assign_add($b + 0.0 * $a)\n$o = w$k * 1.0",
        plays=False,
    ),
    Feature(
        "variable of the first call",
        "if c$k[0] is None:\n    c$k[0] = tf.Variable([1.0, 2.0, 0.5])\nc$k[0].assign(c$k[0] * 0.9)\n$o = $a * c$k[0]",
        make="c$k = [None]",
        turns=("c$k[0] = None",),
        watch="c$k",
    ),
    Feature(
        "shape of a variable",
        "c$k.assign($a)\n$o = c$k * 2.0",
        make="c$k = tf.Variable(tf.zeros([1, 3]), shape=[None, 3])\nstate.append(c$k)",
        plays=False,
    ),
    Feature(
        "drawn by Keras",
        "$o = $a * keras.random.uniform([3], seed=c$k)",
        make="c$k = keras.random.SeedGenerator(5)\nstate.append(c$k)",
        turns=("c$k.state.assign([7, 7])",),
    ),
    Feature("drawn by Keras without a seed", "$o = $a * keras.random.uniform([3])"),
    Feature("drawn by Keras with a number", "$o = $a * keras.random.uniform([3], seed=n)"),
    Feature("drawn", "$o = $a * tf.random.uniform([3])", turns=("tf.random.set_seed(5)",), plays=False),
    Feature(
        "drawn with a seed", "$o = $a * tf.random.uniform([3], seed=4)", turns=("tf.random.set_seed(5)",), plays=False
    ),
    Feature(
        "drawn by a generator",
        "$o = $a * c$k.uniform([3])",
        make="c$k = tf.random.Generator.from_seed(5)\nstate.append(c$k.state)",
        turns=("c$k.reset_from_seed(9)",),
        plays=False,
    ),
    Feature("drawn without state", "$o = $a * tf.random.stateless_uniform([3], [n, 2])"),
    Feature("drawn by Python", "$o = $a * random.random()", "import random", plays=False),
    Feature("drawn by numpy", "$o = $a * np.random.normal()", plays=False),
    Feature(
        "drawn by a generator of numpy", "$o = $a * c$k.normal()", make="c$k = np.random.default_rng(3)", plays=False
    ),
]

# ------------------------------------------------------------------ effects on Python state, and errors

EFFECTS = [
    Feature("counter", "global G$k\nG$k += 1\n$o = $a * G$k", "G$k = 0", watch="G$k", plays=False),
    Feature("counter that is not read", "global G$k\nG$k += 1\n$o = $a * 0.5", "G$k = 0", watch="G$k", plays=False),
    Feature(
        "counter of an object",
        "s$k.count += 1\n$o = $a * 0.5",
        "class S$k:\n    count = 0",
        "s$k = S$k()",
        watch="s$k.count",
        plays=False,
    ),
    Feature(
        "counter of a closure",
        "h$k()\n$o = $a * 0.5",
        make="c$k = [0]\ndef h$k():\n    c$k[0] += 1",
        watch="list(c$k)",
        plays=False,
    ),
    Feature(
        "history", "G$k.append(float(tf.sign($a[0, 0])))\n$o = $a * 0.5", "G$k = []", watch="list(G$k)", plays=False
    ),
    Feature("history of tensors", "G$k.append($a * 2.0)\n$o = $a * 0.5", "G$k = []", watch="list(G$k)", plays=False),
    Feature("tensor that is kept", "G$k['last'] = $a * 2.0\n$o = $a * 0.5", "G$k = {}", watch="dict(G$k)", plays=False),
    Feature(
        "array that is changed", "G$k[0] += 1.0\n$o = $a * 0.5", "G$k = np.zeros(2)", watch="G$k.tolist()", plays=False
    ),
    Feature(
        "array that is filled",
        "G$k[:] = $a.numpy()[0]\n$o = $a * 0.5",
        "G$k = np.zeros(3)",
        watch="G$k.tolist()",
        plays=False,
    ),
    Feature("argument that is changed", "if isinstance(mode, list):\n    mode.append(1)\n$o = $a * 0.5"),
    Feature(
        "iterator", "$o = $a * next(c$k)", make="import itertools\nc$k = itertools.cycle([1.0, 2.0, 3.0])", plays=False
    ),
    Feature("generator", "$o = $a * next(c$k)", make="c$k = (1.0 + 0.1 * one for one in range(10**6))", plays=False),
    Feature(
        "default that is changed",
        "$o = $a * h$k()",
        "def h$k(seen=[]):\n    seen.append(1)\n    return 1.0 / len(seen)",
        plays=False,
    ),
    Feature(
        "data set",
        "$o = $a * next(c$k)",
        make="c$k = iter(tf.data.Dataset.range(1, 100).map(lambda one: tf.cast(one, tf.float32)))",
        plays=False,
    ),
    Feature(
        "Python function in TensorFlow",
        "$o = tf.py_function(lambda one: one * 2.0, [$a], tf.float32)\n$o = tf.ensure_shape($o, $a.shape)",
        plays=False,
    ),
    Feature(
        "numpy function in TensorFlow",
        "$o = tf.numpy_function(h$k, [$a], tf.float32)",
        "G$k = []\ndef h$k(one):\n    G$k.append(1)\n    return one * np.float32(2.0)",
        watch="len(G$k)",
        plays=False,
    ),
    Feature(
        "clock",
        "c$k = time.perf_counter() + float(tf.timestamp()) * 0.0\n$o = $a * float(c$k > 0.0)",
        "import time",
        plays=False,
    ),
    Feature(
        "attribute of a variable",
        "$v.played$k = getattr($v, 'played$k', 0) + 1\n$o = $a * 0.5",
        watch="[getattr(one, 'played$k', 0) for one in variables]",
        plays=False,
    ),
    Feature(
        "table",
        "c$k.insert(tf.constant(['a']), tf.reduce_sum($b)[None])\n$o = $a * c$k.lookup(tf.constant('a'))",
        make="c$k = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)",
        watch="c$k.lookup(tf.constant(['a']))",
        plays=False,
    ),
    Feature("error of Python", "$v.assign_add([0.1, 0.0, 0.0])\nif n == 4:\n    raise ValueError('no')\n$o = $a * $v"),
    Feature(
        "error on a path",
        "$v.assign_add([0.1, 0.0, 0.0])\nif tf.reduce_max($b) > 0.9:\n"
        "    raise ValueError('no')\n$v.assign_add([0.0, 0.1, 0.0])\n$o = $a * $v",
    ),
    Feature(
        "assertion",
        "$v.assign_add([0.1, 0.0, 0.0])\ntf.debugging.assert_less(tf.reduce_max($b), 0.9)\n"
        "$v.assign_add([0.0, 0.1, 0.0])\n$o = $a * $v",
    ),
    Feature(
        "numeric check",
        "$v.assign_add([0.1, 0.0, 0.0])\nn$k = tf.debugging.check_numerics(tf.math.log(0.9 - $b), 'no')\n"
        "$v.assign_add([0.0, 0.1, 0.0])\n$o = $a * tf.sigmoid(n$k)",
    ),
    Feature(
        "error of a kernel",
        "$v.assign_add([0.1, 0.0, 0.0])\ng$k = tf.gather($v, tf.cast($b[0, 0] * 4.0 + 1.0, tf.int32))\n"
        "$v.assign_add([0.0, 0.1, 0.0])\n$o = $a * g$k",
    ),
    Feature(
        "error that is caught",
        "try:\n    g$k = tf.gather([1.0, 2.0, 0.5], tf.cast($b[0, 0] * 4.0 + 1.0, tf.int32))\n"
        "except tf.errors.InvalidArgumentError:\n    g$k = 3.0\n$o = $a * g$k",
        plays=False,
    ),
    Feature(
        "error of Python that is caught",
        "try:\n    $o = $a * {1: 2.0}[int($b[0, 0] > 0.0)]\nexcept KeyError:\n    $o = -$a",
    ),
]

FEATURES = [*READS, *SHAPES, *STATE, *OBJECTS, *FUNCTIONS, *LAZY, *KERAS, *RESULTS, *UPDATES, *EFFECTS]
