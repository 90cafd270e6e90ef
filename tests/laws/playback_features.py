"""Statements of a step that depend on something or change something, and what may happen between two calls.

A feature is Python code with placeholders: `$a` and `$b` are matrices with `rows` rows (or one) and three columns, `$v`
is a variable, `$o` the name of the result, `$k` a number that makes names unique. `found` is a dictionary that the step
returns. `x` and `y` are the first arguments of the step, `n` is a whole number and `mode` a string.
"""

from __future__ import annotations

from typing import NamedTuple


class Feature(NamedTuple):
    """A kind of statement."""

    name: str
    body: str  # in the step; assigns `$o`
    top: str = ""  # in the module
    make: str = ""  # in the function that makes the step; what it assigns is in the closure
    turns: tuple[str, ...] = ()  # run between calls
    watch: str = ""  # an expression of Python that is compared after each call
    plays: bool = True  # whether a step with nothing else has to be played back


# ------------------------------------------------------------------ values that Python looks at

READS = [
    Feature("branch", "$o = tf.sin($a) if tf.reduce_sum($b) > 0.0 else -$a"),
    Feature(
        "branch of three",
        "s$k = float(tf.reduce_mean($b))\n$o = $a * (2.0 if s$k > 0.2 else 3.0 if s$k > -0.2 else 4.0)",
        plays=False,
    ),
    Feature("integer", "$o = $a * [0.5, 1.0, 1.5][int(tf.argmax($b[0]))]"),
    Feature(
        "count of a loop",
        "$o = $a\nfor _ in range(int(tf.reduce_sum(tf.cast($b[:1] > 0.0, tf.int32)))):\n    $o = tf.sin($o) + $b",
    ),
    Feature("while", "$o = $a\nwhile tf.reduce_max(tf.abs($o)) > 0.6:\n    $o = $o * 0.5"),
    Feature("any and all", "$o = $a + (1.0 if all($b[0] > -0.5) and any($b[0] > 0.0) else 0.0)"),
    Feature("sign by numpy", "$o = $a * np.sign($b.numpy()[0, 0])", plays=False),
    Feature("text of a value", "$o = $a * (2.0 if '-' in str(tf.sign($b[0, 0]).numpy()) else 1.0)"),
    Feature("repr of a tensor", "$o = $a * (2.0 if '-' in repr(tf.sign($b[0, 0])) else 1.0)"),
    Feature("format of a tensor", "$o = $a * (2.0 if f'{tf.sign($b[0, 0]):.0f}' == '-1' else 1.0)"),
    Feature("comparison chain", "$o = $a if -0.5 < $b[0, 0] < 0.5 else $a * $a"),
    Feature("membership", "$o = $a * (2.0 if 1 in [int(one > 0) for one in $b[0]] else 1.0)"),
    Feature("largest of a list", "$o = max([$a[:1], $b[:1]], key=lambda one: float(one[0, 0])) * $a", plays=False),
    Feature("list of a tensor", "$o = $a + sum(1.0 for one in tf.sign($b[0]).numpy().tolist() if one > 0)"),
    Feature("array of a tensor", "$o = $a * float(np.round(np.asarray(tf.tanh($b))[0, 0]))", plays=False),
    Feature("numpy function of a tensor", "$o = $a * float(np.sum(tf.sign($b[0])))"),
    Feature("index by a tensor", "$o = $a * [1.0, 2.0, 3.0][tf.argmin($b[0])]"),
    Feature("key by a value", "$o = $a * {True: 0.5, False: 1.5}[bool($b[0, 1] > 0)]"),
    Feature("value of a variable", "$o = $a * (2.0 if $v[0] > 0.3 else 1.0)\n$v.assign_add([0.07, 0.0, 0.0])"),
    Feature("value that is returned", "$o = $a * 0.9\nfound['positive$k'] = bool(tf.reduce_sum($b) > 0.0)"),
    Feature("array that is returned", "$o = $a * 0.9\nfound['array$k'] = tf.sign($b[0]).numpy()"),
    Feature("float that is returned", "$o = $a * 0.9\nfound['float$k'] = float(tf.reduce_sum($b))", plays=False),
    Feature("array that is computed with", "$o = $a + tf.constant($b.numpy() * 2.0)", plays=False),
    Feature("shape of a tensor", "$o = $a / $a.shape[0] + tf.cast(tf.shape($b)[0], tf.float32)"),
    Feature("length of a tensor", "$o = $a / (1 + len($b))"),
    Feature("rows of a tensor", "$o = tf.add_n([row * (1 + number) for number, row in enumerate($a)])[None]"),
    Feature("identity of tensors", "$o = $a if x is y else $a * 0.5"),
    Feature("static value", "$o = $a * (2.0 if (tf.get_static_value(tf.sign($b[0, 0])) or 0.0) > 0 else 1.0)"),
    Feature("deep copy of a tensor", "import copy\n$o = $a * copy.deepcopy($b)"),
    Feature("dlpack", "$o = $a * np.sign(np.from_dlpack(tf.identity($b))[0, 0])", plays=False),
    Feature("memory of a tensor", "$o = $a * (2.0 if memoryview($b)[0, 0] > 0 else 1.0)", plays=False),
]

# ------------------------------------------------------------------ shapes that depend on values

SHAPES = [
    Feature("boolean mask", "$o = $a * tf.reduce_sum(tf.boolean_mask($b, $b > 0.0)) * 0.3"),
    Feature(
        "where",
        "i$k = tf.where($b > 0.1)\n"
        "$o = $a + tf.reduce_sum(tf.gather_nd($b, i$k)) / (1.0 + tf.cast(tf.shape(i$k)[0], tf.float32))",
    ),
    Feature(
        "unique",
        "$o = $a * tf.cast(tf.size(tf.unique(tf.reshape(tf.round(tf.abs($b) * 3.0), [-1])).y), tf.float32) * 0.2",
    ),
    Feature(
        "dynamic partition", "$o = $a + tf.reduce_sum(tf.dynamic_partition($b, tf.cast($b > 0.0, tf.int32), 2)[1])"
    ),
    Feature("mask that is returned", "$o = $a * 0.7\nfound['mask$k'] = tf.boolean_mask($b, $b > 0.0)"),
    Feature("shape of a mask", "m$k = tf.boolean_mask($b, $b > 0.0)\n$o = $a * (0.3 if m$k.shape[0] > 2 else 1.3)"),
    Feature("empty mask", "m$k = tf.boolean_mask($b, $b > 0.9)\n$o = $a + (tf.reduce_max(m$k) if len(m$k) else 0.0)"),
    Feature(
        "ragged",
        "r$k = tf.RaggedTensor.from_row_lengths(tf.reshape($b, [-1]), [2, tf.size($b) - 2])\n"
        "$o = $a * tf.reduce_sum(tf.reduce_mean(r$k, 1))",
    ),
    Feature("sparse", "s$k = tf.sparse.from_dense(tf.nn.relu($b))\n$o = $a * tf.sparse.reduce_sum(s$k) * 0.1"),
    Feature(
        "graph loop", "$o = tf.while_loop(lambda v: tf.reduce_max(tf.abs(v)) > 0.5, lambda v: (v * 0.7,), [$a])[0]"
    ),
    Feature("graph branch", "$o = tf.cond(tf.reduce_sum($b) > 0.0, lambda: $a * 2.0, lambda: -$a)"),
    Feature("map", "$o = tf.map_fn(lambda row: tf.sin(row) * 2.0, $a)"),
    Feature(
        "tensor array",
        "t$k = tf.TensorArray(tf.float32, 2).write(0, $a).write(1, $b + 0.0 * $a)\n$o = tf.reduce_sum(t$k.stack(), 0)",
    ),
]

# ------------------------------------------------------------------ Python state that the step reads

STATE = [
    Feature("global", "$o = $a * G$k", "G$k = 1.5", turns=("global G$k\nG$k = 2.5", "global G$k\nG$k = 1.5")),
    Feature(
        "global of another type",
        "$o = $a * G$k",
        "G$k = 1",
        turns=("global G$k\nG$k = 2", "global G$k\nG$k = 1.0", "global G$k\nG$k = True"),
    ),
    Feature("global string", "$o = getattr(tf, G$k)($a)", "G$k = 'sin'", turns=("global G$k\nG$k = 'tanh'",)),
    Feature(
        "global that is deleted",
        "$o = $a * globals().get('G$k', 0.5)",
        "G$k = 1.5",
        turns=("globals().pop('G$k', None)",),
    ),
    Feature(
        "name that gets shadowed",
        "$o = $a * len([1, 2])",
        turns=("global len\nlen = lambda _: 5", "globals().pop('len', None)"),
    ),
    Feature(
        "list", "$o = $a * sum(G$k)", "G$k = [0.5, 0.7]", turns=("G$k.append(0.25)", "G$k[0] = 3.0", "G$k.reverse()")
    ),
    Feature(
        "list of lists",
        "$o = $a * sum(map(sum, G$k))",
        "G$k = [[0.5], [0.7]]",
        turns=("G$k[1].append(0.25)", "G$k[0][0] = 2.0"),
    ),
    Feature(
        "dictionary",
        "$o = $a * G$k['scale']",
        "G$k = {'scale': 1.5}",
        turns=("G$k['scale'] = 0.5", "G$k.update(scale=1.5, other=1)"),
    ),
    Feature(
        "keys of a dictionary", "$o = $a * len(G$k)", "G$k = {'a': 1}", turns=("G$k['b'] = 2", "G$k.pop('b', None)")
    ),
    Feature("set", "$o = $a * (2.0 if 3 in G$k else 1.0)", "G$k = {1}", turns=("G$k.add(3)", "G$k.discard(3)")),
    Feature(
        "default dictionary",
        "$o = $a * G$k['a']",
        "import collections\nG$k = collections.defaultdict(lambda: 0.5)",
        turns=("G$k['a'] = 2.0",),
        plays=False,
    ),
    Feature(
        "deque",
        "$o = $a * sum(G$k)",
        "import collections\nG$k = collections.deque([1.0], maxlen=2)",
        turns=("G$k.append(2.0)",),
    ),
    Feature(
        "array", "$o = $a * G$k", "G$k = np.array([1.0, 2.0, 0.5], np.float32)", turns=("G$k[1] = 5.0", "G$k[:] *= 0.5")
    ),
    Feature(
        "view of an array",
        "$o = $a * G$k",
        "B$k = np.array([1.0, 2.0, 0.5, 3.0], np.float32)\nG$k = B$k[:3]",
        turns=("B$k[1] = 5.0",),
    ),
    Feature("number of an array", "$o = $a * float(G$k.mean())", "G$k = np.array([1.0, 2.0])", turns=("G$k[1] = 5.0",)),
    Feature("bytes", "$o = $a * G$k[0]", "G$k = bytearray(b'\\x02')", turns=("G$k[0] = 3",)),
    Feature("closure", "$o = $a * c$k", make="c$k = 1.5", turns=("nonlocal c$k\nc$k = 2.5", "nonlocal c$k\nc$k = 1.5")),
    Feature(
        "closure of a helper",
        "$o = h$k($a)",
        make="c$k = 1.5\nh$k = lambda one: one * c$k",
        turns=("nonlocal c$k\nc$k = 2.5",),
    ),
    Feature(
        "function that is replaced",
        "$o = h$k($a)",
        "def h$k(one):\n    return one * 2.0",
        turns=("global h$k\nh$k = tf.sin", "global h$k\nh$k = lambda one: one + 1.0"),
    ),
    Feature(
        "code that is replaced",
        "$o = h$k($a)",
        "def h$k(one):\n    return one * 2.0",
        turns=("h$k.__code__ = (lambda one: one + 1.0).__code__",),
    ),
    Feature(
        "defaults of a function",
        "$o = h$k($a)",
        "def h$k(one, by=2.0):\n    return one * by",
        turns=("h$k.__defaults__ = (3.0,)",),
    ),
    Feature(
        "attribute of a function", "$o = $a * h$k.by", "def h$k():\n    pass\nh$k.by = 2.0", turns=("h$k.by = 3.0",)
    ),
    Feature(
        "partial",
        "$o = h$k($a)",
        "import functools\nh$k = functools.partial(tf.multiply, 2.0)",
        turns=("global h$k\nh$k = functools.partial(tf.multiply, 3.0)",),
    ),
    Feature(
        "attribute",
        "$o = $a * s$k.by",
        "class S$k:\n    by = 2.0",
        "s$k = S$k()",
        ("s$k.by = 3.0", "S$k.by = 4.0", "s$k.__dict__.pop('by', None)"),
    ),
    Feature(
        "attribute by name",
        "$o = $a * getattr(s$k, 'b' + 'y')",
        "class S$k:\n    by = 2.0",
        "s$k = S$k()",
        ("s$k.by = 3.0",),
    ),
    Feature(
        "slots",
        "$o = $a * s$k.by",
        "class S$k:\n    __slots__ = ('by',)",
        "s$k = S$k()\ns$k.by = 2.0",
        ("s$k.by = 3.0",),
    ),
    Feature(
        "nested attributes",
        "$o = $a * s$k.inner.by[0]",
        "class S$k:\n    pass",
        "s$k = S$k()\ns$k.inner = S$k()\ns$k.inner.by = [2.0]",
        ("s$k.inner.by[0] = 3.0", "s$k.inner.by = [4.0]"),
    ),
    Feature(
        "property",
        "$o = $a * s$k.by",
        "class S$k:\n    base = [1.0]\n    @property\n    def by(self):\n        return self.base[0] + 1.0",
        "s$k = S$k()",
        ("S$k.base[0] = 3.0",),
    ),
    Feature(
        "attribute that is computed",
        "$o = $a * s$k.by",
        "class S$k:\n    def __init__(self):\n        self.table = {'by': 2.0}\n"
        "    def __getattr__(self, name):\n        return self.__dict__['table'][name]",
        "s$k = S$k()",
        ("s$k.table['by'] = 3.0",),
    ),
    Feature(
        "data class",
        "$o = $a * s$k.by if s$k.on else -$a",
        "import dataclasses\n@dataclasses.dataclass\nclass S$k:\n    by: float = 2.0\n    on: bool = True",
        "s$k = S$k()",
        ("s$k.on = not s$k.on", "s$k.by += 1.0"),
    ),
    Feature(
        "method that is replaced",
        "$o = s$k.run($a)",
        "class S$k:\n    def run(self, one):\n        return one * 2.0",
        "s$k = S$k()",
        ("s$k.run = tf.sin", "S$k.run = lambda self, one: one * 3.0"),
    ),
    Feature(
        "method called by a name",
        "$o = s$k($a)",
        "class S$k:\n    by = 2.0\n    def __call__(self, one):\n"
        "        return self.run(one)\n    def run(self, one):\n        return one * self.by",
        "s$k = S$k()",
        ("s$k.by = 3.0", "s$k.run = tf.sin"),
    ),
    Feature(
        "enumeration",
        "$o = $a * (2.0 if G$k is E$k.ONE else 1.0)",
        "import enum\nE$k = enum.Enum('E$k', 'ONE TWO')\nG$k = E$k.ONE",
        turns=("global G$k\nG$k = E$k.TWO",),
    ),
    Feature(
        "cached function",
        "$o = $a * h$k()",
        "import functools\nG$k = [2.0]\n@functools.lru_cache\ndef h$k():\n    return G$k[0]",
        turns=("G$k[0] = 3.0", "h$k.cache_clear()"),
        plays=False,
    ),
    Feature(
        "environment",
        "$o = $a * float(os.environ.get('PLAYED$k', '2'))",
        "import os\nos.environ.pop('PLAYED$k', None)",
        turns=("os.environ['PLAYED$k'] = '3'",),
        plays=False,
    ),
    Feature(
        "attribute of a module",
        "$o = $a * types.played$k",
        "import types\ntypes.played$k = 2.0",
        turns=("types.played$k = 3.0",),
        plays=False,
    ),
    Feature(
        "context variable",
        "$o = $a * G$k.get()",
        "import contextvars\nG$k = contextvars.ContextVar('G$k', default=2.0)",
        turns=("G$k.set(3.0)",),
        plays=False,
    ),
    Feature(
        "class made in the step",
        "class Local:\n    by = G$k\n$o = $a * Local().by",
        "G$k = 2.0",
        turns=("global G$k\nG$k = 3.0",),
    ),
    Feature(
        "tensor",
        "$o = $a * G$k",
        "G$k = tf.constant([1.0, 2.0, 0.5])",
        turns=("global G$k\nG$k = tf.constant([2.0, 1.0, 0.5])",),
    ),
    Feature(
        "tensor in a list",
        "$o = $a * G$k[0]",
        "G$k = [tf.constant([1.0, 2.0, 0.5])]",
        turns=("G$k[0] = tf.constant([2.0, 1.0, 0.5])",),
    ),
    Feature(
        "tensor made of an array",
        "$o = $a * tf.constant(G$k)",
        "G$k = np.array([1.0, 2.0, 0.5], np.float32)",
        turns=("G$k[0] = 7.0",),
    ),
    Feature(
        "variable that is replaced",
        "$o = $a * G$k\nG$k.assign(G$k * 0.9)",
        "G$k = tf.Variable([1.0, 2.0, 0.5])",
        turns=("global G$k\nG$k = tf.Variable([2.0, 1.0, 0.5])",),
        watch="G$k",
    ),
    Feature(
        "list of variables",
        "$o = $a * tf.add_n([one * 1.0 for one in G$k])",
        "G$k = [tf.Variable([1.0, 2.0, 0.5])]",
        turns=("G$k.append(tf.Variable([0.5, 0.5, 0.5]))", "G$k[0].assign([3.0, 3.0, 3.0])"),
    ),
    Feature(
        "equal variables swapped",
        "$o = $a * G$k[0] - $b * G$k[1]",
        "G$k = [tf.Variable([1.0, 2.0, 0.5]), tf.Variable([0.5, 0.1, 0.2])]",
        turns=("G$k.reverse()",),
    ),
]
