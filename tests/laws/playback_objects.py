"""More statements of a step: objects of the user, functions "
"of TensorFlow with control flow, state made when first used."""

from __future__ import annotations

from laws.playback_features import Feature

_BOX = "class S$k:\n    def __init__(self, by):\n        self.by = [by]\n"

OBJECTS = [
    Feature(
        "container of the user",
        "$o = $a * s$k['by']",
        _BOX + "    def __getitem__(self, key):\n        return getattr(self, key)[0]",
        "s$k = S$k(2.0)",
        ("s$k.by[0] = 3.0", "s$k.by = [4.0]"),
    ),
    Feature(
        "iteration over an object",
        "$o = $a * sum(s$k)",
        _BOX + "    def __iter__(self):\n        return iter(self.by)",
        "s$k = S$k(2.0)",
        ("s$k.by.append(3.0)",),
    ),
    Feature(
        "operator of an object",
        "$o = $a * (s$k + 1.0)",
        _BOX + "    def __add__(self, other):\n        return self.by[0] + other",
        "s$k = S$k(2.0)",
        ("s$k.by[0] = 3.0",),
    ),
    Feature(
        "truth of an object",
        "$o = $a * 2.0 if s$k else -$a",
        _BOX + "    def __len__(self):\n        return len(self.by)",
        "s$k = S$k(2.0)",
        ("s$k.by.clear()", "s$k.by.append(1.0)"),
    ),
    Feature(
        "context of an object",
        "with s$k as by$k:\n    $o = $a * by$k",
        _BOX + "    def __enter__(self):\n        return self.by[0]\n    def __exit__(self, *_):\n        pass",
        "s$k = S$k(2.0)",
        ("s$k.by[0] = 3.0",),
    ),
    Feature(
        "inherited method",
        "$o = T$k(2.0).run($a)",
        _BOX + "    def run(self, one):\n        return one * self.by[0] * G$k\nclass T$k(S$k):\n"
        "    def run(self, one):\n        return super().run(one) + 1.0\nG$k = 1.0",
        turns=("global G$k\nG$k = 3.0",),
    ),
    Feature(
        "static method",
        "$o = S$k.run($a)",
        "class S$k:\n    by = [2.0]\n    @staticmethod\n    def run(one):\n        return one * S$k.by[0]",
        turns=("S$k.by[0] = 3.0", "S$k.by = [4.0]"),
    ),
    Feature(
        "class method",
        "$o = S$k.run($a)",
        "class S$k:\n    by = [2.0]\n    @classmethod\n    def run(cls, one):\n        return one * cls.by[0]",
        turns=("S$k.by[0] = 3.0", "S$k.by = [4.0]"),
    ),
    Feature(
        "class of an object",
        "$o = $a * s$k.by",
        "class S$k:\n    by = 2.0\nclass T$k:\n    by = 3.0",
        "s$k = S$k()",
        ("s$k.__class__ = T$k",),
    ),
    Feature(
        "object that is replaced",
        "$o = $a * s$k.by[0]",
        _BOX,
        "s$k = S$k(2.0)",
        ("nonlocal s$k\ns$k = S$k(3.0)", "nonlocal s$k\ns$k = S$k(2.0)"),
    ),
    Feature(
        "table of functions",
        "$o = G$k[mode if mode == 'mean' else 'sum']($a)",
        "G$k = {'sum': tf.sin, 'mean': tf.cos}",
        turns=("G$k['sum'] = tf.tanh", "G$k.update(sum=lambda one: one * 2.0)"),
    ),
    Feature(
        "decorated function",
        "$o = h$k($a)",
        "import functools\nG$k = [2.0]\ndef d$k(function):\n    @functools.wraps(function)\n    def inner(one):\n"
        "        return function(one) * G$k[0]\n    return inner\n@d$k\ndef h$k(one):\n    return tf.sin(one)",
        turns=("G$k[0] = 3.0", "h$k.__wrapped__ = tf.cos"),
    ),
    Feature(
        "named tuple",
        "$o = $a * G$k.by",
        "import collections\nN$k = collections.namedtuple('N$k', 'by')\nG$k = N$k(2.0)",
        turns=("global G$k\nG$k = G$k._replace(by=3.0)",),
    ),
    Feature(
        "name space", "$o = $a * G$k.by", "import types\nG$k = types.SimpleNamespace(by=2.0)", turns=("G$k.by = 3.0",)
    ),
    Feature(
        "dictionary of the user",
        "$o = $a * G$k['by']",
        "class S$k(dict):\n    pass\nG$k = S$k(by=2.0)",
        turns=("G$k['by'] = 3.0",),
    ),
    Feature(
        "map of maps",
        "import collections\n$o = $a * collections.ChainMap(G$k, {'by': 2.0})['by']",
        "G$k = {}",
        turns=("G$k['by'] = 3.0",),
    ),
    Feature(
        "configuration by names",
        "$o = $a\nfor name$k in ('one', 'two'):\n    $o = $o * getattr(s$k, name$k)",
        "class S$k:\n    pass",
        "s$k = S$k()\ns$k.one, s$k.two = 2.0, 0.5",
        ("s$k.two = 3.0",),
    ),
    Feature(
        "attributes as a dictionary",
        "$o = $a * vars(s$k)['by']",
        "class S$k:\n    pass",
        "s$k = S$k()\ns$k.by = 2.0",
        ("s$k.by = 3.0",),
    ),
    Feature(
        "attribute that is missing",
        "$o = $a * getattr(s$k, 'by', 2.0)",
        "class S$k:\n    pass",
        "s$k = S$k()",
        ("s$k.by = 3.0", "s$k.__dict__.pop('by', None)"),
    ),
    Feature(
        "key that is missing",
        "$o = $a * G$k.get('by', 2.0)",
        "G$k = {}",
        turns=("G$k['by'] = 3.0", "G$k.pop('by', None)"),
    ),
    Feature(
        "function made in the step",
        "def inner$k(one, by=G$k[0]):\n    return one * by + c$k\n$o = inner$k($a)",
        "G$k = [2.0]",
        "c$k = 1.0",
        ("G$k[0] = 3.0", "nonlocal c$k\nc$k = 2.0"),
    ),
    Feature(
        "file",
        "with open(G$k) as file$k:\n    $o = $a * float(file$k.read())",
        "import os, tempfile\nG$k = os.path.join(tempfile.gettempdir(), f'played{os.getpid()}')\n"
        "open(G$k, 'w').write('2')",
        turns=("open(G$k, 'w').write('3')",),
        plays=False,
    ),
    Feature(
        "import in the step", "import math\n$o = $a * math.cos(G$k)", "G$k = 2.0", turns=("global G$k\nG$k = 3.0",)
    ),
    Feature(
        "global of numpy",
        "$o = $a * G$k",
        "G$k = np.float32(2.0)",
        turns=("global G$k\nG$k = np.float32(3.0)", "global G$k\nG$k = np.float64(3.0)"),
    ),
    Feature("large array", "$o = $a * float(G$k[-1])", "G$k = np.ones(1 << 19)", turns=("G$k[-1] = 3.0",)),
    Feature(
        "large array as a constant",
        "$o = $a * tf.reduce_mean(tf.constant(G$k))",
        "G$k = np.ones(1 << 19, np.float32)",
        turns=("G$k[:1000] = 300.0",),
    ),
    Feature(
        "array of objects",
        "$o = $a * G$k[0][0]",
        "G$k = np.array([None], object)\nG$k[0] = [2.0]",
        turns=("G$k[0][0] = 3.0", "G$k[0] = [4.0]"),
    ),
    Feature(
        "view of a dictionary",
        "$o = $a * G$k['by']",
        "import types\nB$k = {'by': 2.0}\nG$k = types.MappingProxyType(B$k)",
        turns=("B$k['by'] = 3.0",),
        plays=False,
    ),
    Feature(
        "array of Python",
        "$o = $a * G$k[0]",
        "import array\nG$k = array.array('d', [2.0])",
        turns=("G$k[0] = 3.0",),
        plays=False,
    ),
    Feature(
        "weak reference",
        "$o = $a * G$k().by",
        "import weakref\nclass S$k:\n    pass\nB$k = S$k()\nB$k.by = 2.0\nG$k = weakref.ref(B$k)",
        turns=("B$k.by = 3.0",),
        plays=False,
    ),
    Feature(
        "variable of a thread",
        "$o = $a * G$k.by",
        "import threading\nG$k = threading.local()\nG$k.by = 2.0",
        turns=("G$k.by = 3.0",),
        plays=False,
    ),
    Feature("generator of Python", "$o = $a * c$k.random()", "import random", "c$k = random.Random(3)", plays=False),
]

# ------------------------------------------------------------------ functions of TensorFlow, compiled steps

FUNCTIONS = [
    Feature(
        "function with a branch",
        "$o = h$k($a)",
        "h$k = tf.function(lambda one: tf.cond(one[0, 0] > 0.0, lambda: one * 2.0, lambda: -one), autograph=False)",
    ),
    Feature(
        "function with a loop",
        "$o = h$k($a)",
        "@tf.function\ndef h$k(one):\n    while tf.reduce_max(tf.abs(one)) > 0.5:\n"
        "        one = one * 0.7\n    return one",
    ),
    Feature(
        "function with a loop over a tensor",
        "$o = h$k($a, tf.argmax($b[0]))",
        "@tf.function\ndef h$k(one, count):\n    for _ in tf.range(count):\n"
        "        one = tf.sin(one) * 2.0\n    return one",
    ),
    Feature(
        "function with an update on a path",
        "$o = h$k($a)",
        make="v$k = variables[0]\n@tf.function\ndef h$k(one):\n    if tf.reduce_sum(one) > 0.0:\n"
        "        v$k.assign_add([0.1, 0.0, 0.0])\n    return one * v$k",
    ),
    Feature(
        "function with a shape that depends on values",
        "$o = $a * tf.reduce_sum(h$k($b))",
        "h$k = tf.function(lambda one: tf.boolean_mask(one, one > 0.0), autograph=False)",
    ),
    Feature(
        "function of a Python value", "$o = h$k($a, n)", "h$k = tf.function(lambda one, n: one * n, autograph=False)"
    ),
    Feature(
        "function that draws",
        "$o = $a * h$k()",
        make="s$k = keras.random.SeedGenerator(3)\nstate.append(s$k)\n"
        "h$k = tf.function(lambda: keras.random.uniform([3], seed=s$k), autograph=False)",
    ),
    Feature(
        "function that draws by a seed",
        "$o = $a * h$k()",
        "h$k = tf.function(lambda: tf.random.uniform([3], seed=4), autograph=False)",
        plays=False,
    ),
    Feature(
        "gradient of a function",
        "with rt.Tape() as t$k:\n    t$k.watch($a)\n    s$k = h$k($a)\n$o = t$k.gradient(s$k, $a)",
        "h$k = tf.function(lambda one: tf.sin(one) ** 2, autograph=False)",
    ),
    Feature(
        "function with XLA",
        "$o = h$k($a)",
        "h$k = tf.function(lambda one: tf.sin(one) * 2.0, autograph=False, jit_compile=True)",
    ),
    Feature(
        "compiled step",
        "$o = h$k($a)",
        make="c$k = variables[1]\n@rt.compile\ndef h$k(one):\n"
        "    c$k.assign_add([0.1, 0.0, 0.0])\n    return one * c$k",
    ),
    Feature(
        "recomputed gradient",
        "with rt.Tape() as t$k:\n    t$k.watch($a)\n"
        "    s$k = tf.recompute_grad(lambda one: tf.sin(one) ** 2)($a)\n$o = t$k.gradient(s$k, $a)",
    ),
]

# ------------------------------------------------------------------ state that is made when it is first used

LAZY = [
    Feature(
        "attribute made in the first call",
        "if s$k.by is None:\n    s$k.by = 2.0\n$o = $a * s$k.by",
        "class S$k:\n    def __init__(self):\n        self.by = None",
        "s$k = S$k()",
        ("s$k.by = None", "s$k.by = 3.0"),
        "s$k.by",
    ),
    Feature(
        "cache filled in the first call",
        "if mode not in ('sum', 'mean') or mode not in c$k:\n    c$k[str(mode)] = 2.0\n$o = $a * c$k[str(mode)]",
        make="c$k = {}",
        turns=("c$k.clear()",),
        watch="dict(c$k)",
    ),
    Feature(
        "layer made in the first call",
        "if s$k.layer is None:\n    s$k.layer = keras.layers.Dense(3)\n$o = s$k.layer($a)",
        "class S$k:\n    def __init__(self):\n        self.layer = None",
        "s$k = S$k()",
        watch="s$k.layer.get_weights()",
    ),
    Feature(
        "optimizer made in the first call",
        "if s$k.made is None:\n    s$k.made = keras.optimizers.Adam(0.1)\n"
        "s$k.made.apply([tf.reduce_mean($a, 0)], [$v])\n$o = $a * $v",
        "class S$k:\n    def __init__(self):\n        self.made = None",
        "s$k = S$k()",
        watch="s$k.made.variables",
    ),
    Feature(
        "flag set on a path",
        "if tf.reduce_sum($b) > 0.0:\n    s$k.seen = True\n$o = $a * (2.0 if s$k.seen else 1.0)",
        "class S$k:\n    def __init__(self):\n        self.seen = False",
        "s$k = S$k()",
        ("s$k.seen = False",),
        "s$k.seen",
        plays=False,
    ),
]
