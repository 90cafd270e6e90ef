"""Kinds of Python state, ways to read it, and ways to change it.

A kind says how state is made, `h`, how a number is read from it, and what may change it. A way wraps the expression
that reads. `state_programs.py` makes programs of them.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """Where a number is kept."""

    name: str
    made: str  # statements that make `h`
    read: str  # an expression
    changes: tuple[str, ...]  # statements; none if reading changes it
    plays: bool = True  # whether it has to be played back


class Way(NamedTuple):
    """How the number gets to the step."""

    name: str
    made: str  # statements; `$` is the expression that reads
    read: str
    plays: bool = True
    tells: bool = True  # whether another number gives another result


_C = "class C:\n    k = 1.0\n"
_ITEM = ("h['k'] = 2.0", "h.update(k=3.0)", "h.clear()\nh['k'] = 4.0")
_FIRST = ("h[0] = 2.0", "h.insert(0, 3.0)", "h.reverse()")
_ATTRIBUTE = ("h.k = 2.0", "setattr(h, 'k', 3.0)")
KINDS = [
    Kind("name", "h = 1.0", "h", ("h = 2.0", "h = True", "h = -0.0")),
    Kind("dictionary", "h = {'k': 1.0}", "h['k']", (*_ITEM, "h = {'k': 5.0}")),
    Kind("key of a dictionary", "h = {1.0: 0}", "next(iter(h))", ("h.clear()\nh[2.0] = 0",), False),
    Kind("length of a list", "h = [1]", "len(h)", ("h.append(1)", "h.clear()", "h = [1, 2]")),
    Kind("list", "h = [1.0]", "h[0]", (*_FIRST, "h = [5.0]")),
    Kind("list in a tuple", "h = ([1.0],)", "h[0][0]", ("h[0][0] = 2.0", "h = ([3.0],)")),
    Kind(
        "nested", "h = {'a': [{'k': 1.0}]}", "h['a'][0]['k']", ("h['a'][0]['k'] = 2.0", "h['a'].insert(0, {'k': 3.0})")
    ),
    Kind("deque", "h = collections.deque([1.0, 2.0])", "h[0]", ("h.rotate(1)", "h.appendleft(3.0)", "h[0] = 4.0")),
    Kind("ordered", "h = collections.OrderedDict(a=1.0, b=2.0)", "list(h.values())[0]", ("h.move_to_end('a')",)),
    Kind("order", "h = {'a': 1.0, 'b': 2.0}", "list(h.values())[0]", ("h['a'] = h.pop('a')",)),
    Kind("default", "h = collections.defaultdict(lambda: 1.0, k=1.0)", "h['k']", _ITEM),
    Kind("counter", "h = collections.Counter(k=1)", "h['k']", ("h['k'] += 1", "h.update('k')")),
    Kind(
        "chain of maps", "g = {'k': 1.0}\nh = collections.ChainMap({}, g)", "h['k']", ("g['k'] = 2.0", "h['k'] = 3.0")
    ),
    Kind("user list", "h = collections.UserList([1.0])", "h[0]", _FIRST),
    Kind("user dictionary", "h = collections.UserDict(k=1.0)", "h['k']", _ITEM),
    Kind("set", "h = {0, 8}", "float(list(h)[0] + 1)", ("h.clear()\nh.add(8)\nh.add(0)", "h.add(-1)")),
    Kind(
        "derived list", "class L(list):\n    def __iter__(self):\n        return iter(())\nh = L([1.0])", "h[0]", _FIRST
    ),
    Kind("derived dictionary", "class D(dict):\n    pass\nh = D(k=1.0)", "h['k']", _ITEM),
    Kind("array", "h = np.ones(2)", "float(h[0])", ("h[0] = 2.0", "h *= 2.0", "h = np.zeros(1)")),
    Kind("array of objects", "h = np.array([[1.0], None], object)", "h[0][0]", ("h[0][0] = 2.0", "h[0] = [3.0]")),
    Kind("record", "h = np.zeros(1, [('k', 'f4')])[0]", "float(h['k'])", ("h['k'] = 2.0",), False),
    Kind("array of Python", "h = array.array('d', [1.0])", "h[0]", ("h[0] = 2.0",)),
    Kind("bytes", "h = bytearray(b'\\x01')", "float(h[0])", ("h[0] = 2",)),
    Kind("memory", "g = bytearray(b'\\x01')\nh = memoryview(g)", "float(h[0])", ("g[0] = 2",), False),
    Kind("view", "g = {'k': 1.0}\nh = g.values()", "sum(h)", ("g['k'] = 2.0",), False),
    Kind("read-only view", "g = {'k': 1.0}\nh = types.MappingProxyType(g)", "h['k']", ("g['k'] = 2.0",)),
    Kind(
        "attribute", f"{_C}h = C()", "h.k", (*_ATTRIBUTE, "h.__dict__['k'] = 4.0", "h.__dict__ = {'k': 5.0}", "h = C()")
    ),
    Kind("attribute of a class", f"{_C}h = C", "h.k", ("h.k = 2.0", "type.__setattr__(h, 'k', 3.0)")),
    Kind("class of an object", f"{_C}class B:\n    k = 2.0\nh = C()", "h.k", ("h.__class__ = B",)),
    Kind(
        "inherited",
        f"{_C}class D(C):\n    pass\nh = D()",
        "h.k",
        ("C.k = 2.0", "D.k = 3.0", "h.k = 4.0", "del h.k, D.k"),
    ),
    Kind("bases", f"{_C}class B:\n    k = 2.0\nclass D(C):\n    pass\nh = D()", "h.k", ("D.__bases__ = (B,)",)),
    Kind(
        "metaclass",
        "class M(type):\n    k = 1.0\nclass D(metaclass=M):\n    pass\nh = D",
        "h.k",
        ("M.k = 2.0", "h.k = 3.0"),
    ),
    Kind("slot", "class S:\n    __slots__ = ('k',)\nh = S()\nh.k = 1.0", "h.k", (*_ATTRIBUTE, "h = S()\nh.k = 4.0")),
    Kind(
        "private slot",
        "class S:\n    __slots__ = ('__k',)\n    def put(self, k):\n        self.__k = k\n"
        "    def get(self):\n        return self.__k\nh = S()\nh.put(1.0)",
        "h.get()",
        ("h.put(2.0)",),
    ),
    Kind(
        "property",
        "class P:\n    a = 1.0\n    @property\n    def k(self):\n        return self.a\nh = P()",
        "h.k",
        ("h.a = 2.0",),
    ),
    Kind(
        "replaced property",
        "class P:\n    k = property(lambda self: 1.0)\nh = P()",
        "h.k",
        ("P.k = property(lambda self: 2.0)",),
    ),
    Kind(
        "missing attribute",
        "class E:\n    def __getattr__(self, name):\n        return vars(type(self)).get('fall', 1.0)\nh = E()",
        "h.k",
        ("h.k = 2.0", "del h.k\nE.fall = 3.0"),
    ),
    Kind(
        "descriptor",
        "class G:\n    def __get__(self, one, kind):\n        return kind.a\n"
        "class P:\n    a = 1.0\n    k = G()\nh = P()",
        "h.k",
        ("P.a = 2.0",),
    ),
    Kind(
        "data class",
        "@dataclasses.dataclass\nclass A:\n    k: float = 1.0\nh = A()",
        "h.k",
        (*_ATTRIBUTE, "h = A(4.0)"),
    ),
    Kind(
        "named tuple",
        "N = collections.namedtuple('N', 'k')\nh = N(1.0)",
        "h.k",
        ("h = N(2.0)", "h = h._replace(k=3.0)"),
    ),
    Kind("name space", "h = types.SimpleNamespace(k=1.0)", "h.k", (*_ATTRIBUTE, "h.__dict__.update(k=4.0)")),
    Kind("arguments", "h = argparse.Namespace(k=1.0)", "h.k", _ATTRIBUTE),
    Kind("value of an enum", f"{_C}class E(enum.Enum):\n    A = C()\nh = E", "h.A.value.k", ("h.A.value.k = 2.0",)),
    Kind("attribute of an enum", "class E(enum.Enum):\n    A = 1\nh = E.A\nh.k = 1.0", "h.k", ("h.k = 2.0",)),
    Kind(
        "derived float",
        "class F(float):\n    pass\nh = F(1.0)\nh.k = 1.0",
        "h.k",
        ("h.k = 2.0", "h = F(2.0)\nh.k = 3.0"),
    ),
    Kind("module", "h = types.ModuleType('m')\nh.k = 1.0", "h.k", _ATTRIBUTE),
    Kind("attribute of a function", "def h():\n    pass\nh.k = 1.0", "h.k", _ATTRIBUTE),
    Kind("function", "def h():\n    return 1.0", "h()", ("h = lambda: 2.0", "def g():\n    return 3.0\nh = g")),
    Kind(
        "code of a function", "def h():\n    return 1.0\ndef g():\n    return 2.0", "h()", ("h.__code__ = g.__code__",)
    ),
    Kind(
        "default of a function",
        "def h(k=[1.0]):\n    return k[0]",
        "h()",
        ("h.__defaults__[0][0] = 2.0", "h.__defaults__ = ([3.0],)"),
    ),
    Kind(
        "default by name",
        "def h(*, k=1.0):\n    return k",
        "h()",
        ("h.__kwdefaults__ = {'k': 2.0}", "h.__kwdefaults__['k'] = 3.0"),
    ),
    Kind(
        "closure",
        "def own():\n    k = 1.0\n    def put(one):\n        nonlocal k\n        k = one\n"
        "    return (lambda: k), put\nh, put = own()",
        "h()",
        ("put(2.0)",),
    ),
    Kind(
        "partial",
        "g = [1.0]\nh = functools.partial(lambda one: one[0], g)",
        "h()",
        ("g[0] = 2.0", "h = functools.partial(lambda: 3.0)"),
    ),
    Kind("bound method", "g = [1.0]\nh = g.__getitem__", "h(0)", ("g[0] = 2.0",)),
    Kind(
        "method of an object",
        "class O:\n    k = 1.0\n    def get(self):\n        return self.k\ng = O()\nh = g.get",
        "h()",
        ("g.k = 2.0", "O.k = 3.0\ndel g.k"),
    ),
    Kind(
        "callable object",
        "class O:\n    k = 1.0\n    def __call__(self):\n        return self.k\nh = O()",
        "h()",
        ("h.k = 2.0", "O.__call__ = lambda self: 3.0"),
    ),
    Kind(
        "registered function",
        "@functools.singledispatch\ndef h(one):\n    return 1.0",
        "h(0)",
        ("h.register(int, lambda one: 2.0)",),
    ),
    Kind("getter", "g = types.SimpleNamespace(k=1.0)\nh = operator.attrgetter('k')", "h(g)", ("g.k = 2.0",)),
    Kind(
        "environment", "h = os.environ\nh['RETROTAPE_K'] = '1'", "float(h['RETROTAPE_K'])", ("h['RETROTAPE_K'] = '2'",)
    ),
    Kind("context variable", "h = contextvars.ContextVar('h', default=1.0)\nh.set(1.0)", "h.get()", ("h.set(2.0)",)),
    Kind("variable of a thread", "h = threading.local()\nh.k = 1.0", "h.k", _ATTRIBUTE),
    Kind("event", "h = threading.Event()", "(2.0 if h.is_set() else 1.0)", ("h.set()", "h.clear()")),
    Kind("lock", "h = threading.Lock()", "(2.0 if h.locked() else 1.0)", ("h.acquire()",), False),
    Kind("weak reference", f"{_C}g = C()\nh = weakref.ref(g)", "h().k", ("g.k = 2.0",), False),
    Kind(
        "weak reference that ends",
        f"{_C}g = [C()]\nh = weakref.ref(g[0])",
        "(1.0 if h() else 2.0)",
        ("g.clear()",),
        False,
    ),
    Kind(
        "logger",
        "h = logging.getLogger('h')\nh.setLevel('INFO')",
        "(2.0 if h.isEnabledFor(10) else 1.0)",
        ("h.setLevel('DEBUG')",),
    ),
    Kind("module of variables", "h = tf.Module()\nh.k = 1.0", "h.k", _ATTRIBUTE),
    Kind("dictionary of a module", "h = tf.Module()\nh.d = {'k': 1.0}", "h.d['k']", ("h.d['k'] = 2.0",)),
    Kind("attribute of a tensor", "h = tf.constant(1.0)\nh.k = 1.0", "h.k", _ATTRIBUTE),
    Kind(
        "attribute of a variable",
        "h = tf.Variable(1.0)\nh.k = {'a': 1.0}",
        "h.k['a']",
        ("h.k['a'] = 2.0", "h.k = {'a': 3.0}"),
    ),
    Kind("attribute of a layer", "h = keras.layers.Dense(2)\nh.k = 1.0", "h.k", _ATTRIBUTE),
    Kind(
        "dictionary of a layer", "h = keras.layers.Dense(2)\nh.d = {'k': [1.0]}", "h.d['k'][0]", ("h.d['k'][0] = 2.0",)
    ),
    Kind(
        "own layer",
        "class Own(keras.layers.Layer):\n    def call(self, x):\n        return x * self.k\nh = Own()\nh.k = 1.0",
        "float(h(tf.constant(1.0)))",
        ("h.k = 2.0",),
    ),
    Kind("held by a loss", "h = keras.losses.Huber()\nh.o = types.SimpleNamespace(k=1.0)", "h.o.k", ("h.o.k = 2.0",)),
    Kind(
        "computed name on a layer",
        "h = keras.layers.Dense(2)\nh.zz = {'o': types.SimpleNamespace(k=1.0)}\nn = 'z'",
        "getattr(h, n + 'z')['o'].k",
        ("h.zz['o'].k = 2.0", "h.zz['o'] = types.SimpleNamespace(k=3.0)"),
    ),
    Kind(
        "computed name in a module",
        "h = types.ModuleType('m')\nh.k1 = [1.0]\nn = 1",
        "getattr(h, f'k{n}')[0]",
        ("h.k1[0] = 2.0",),
    ),
    Kind(
        "own equality",
        "class Q:\n    __eq__ = lambda *_: True\nh = Q()\nh.k = 1.0",
        "h.k",
        ("h = type(h)()\nh.k = 2.0",),
    ),
    Kind(
        "own mapping",
        "class L(collections.abc.Mapping):\n    n = 0\n    def __getitem__(self, key):\n        self.n += 1\n"
        "        return float(self.n)\n    __iter__ = lambda _: iter((0,))\n    __len__ = lambda _: 1\nh = L()",
        "h[0]",
        (),
        False,
    ),
    Kind("name of a class", "class A:\n    pass\nh = A", "float(len(h.__name__))", ("h.__name__ = 'Longer'",)),
    Kind("dates", "h = datetime.date(2001, 1, 1)", "float(h.day)", ("h = datetime.date(2001, 1, 2)",)),
    Kind("number", "h = fractions.Fraction(1, 2)", "float(h)", ("h = fractions.Fraction(1, 3)",)),
    Kind(
        "decimal context",
        "h = decimal.Decimal(1)",
        "float(h / 3)",
        ("decimal.getcontext().prec = 3", "decimal.getcontext().prec = 28"),
    ),
    Kind("range", "h = range(1, 3)", "float(h[0])", ("h = range(2, 3)",)),
    Kind("exception", "h = ValueError(1.0)", "h.args[0]", ("h.args = (2.0,)",)),
    # What reading itself changes.
    Kind("counting attribute", f"{_C}h = C()\ndef up():\n    h.k += 1.0\n    return h.k", "up()", (), False),
    Kind(
        "counting dictionary", "h = {'k': 0}\ndef up():\n    h['k'] += 1\n    return float(h['k'])", "up()", (), False
    ),
    Kind("counting class", f"{_C}def up():\n    C.k += 1.0\n    return C.k\nh = C", "up()", (), False),
    Kind(
        "counting slot",
        "class S:\n    __slots__ = ('k',)\nh = S()\nh.k = 0.0\ndef up():\n    h.k += 1.0\n    return h.k",
        "up()",
        (),
        False,
    ),
    Kind("counting function", "def h():\n    h.k += 1.0\n    return h.k\nh.k = 0.0", "h()", (), False),
    Kind("counting list", "h = []\ndef up():\n    h.append(1)\n    return float(len(h))", "up()", (), False),
    Kind("counting array", "h = np.zeros(1)\ndef up():\n    h[0] += 1.0\n    return float(h[0])", "up()", (), False),
    Kind("counting module", "h = tf.Module()\nh.k = 0.0\ndef up():\n    h.k += 1.0\n    return h.k", "up()", (), False),
    Kind(
        "counting tensor",
        "h = tf.constant(1.0)\nh.k = 0.0\ndef up():\n    h.k += 1.0\n    return h.k",
        "up()",
        (),
        False,
    ),
    Kind("iterator", "h = itertools.count(1)", "float(next(h))", (), False),
    Kind("generator", "h = (float(k) for k in itertools.count(1))", "next(h)", (), False),
    Kind("queue", "h = collections.deque(range(99))", "float(h.popleft())", (), False),
    Kind("remembered", "h = functools.lru_cache(lambda one: [0.0])", "(h(1).append(1) or float(len(h(1))))", (), False),
    Kind("random numbers", "h = random.Random(3)", "h.random()", (), False),
    Kind("random numbers of NumPy", "h = np.random.default_rng(3)", "float(h.normal())", (), False),
]

WAYS = [
    Way("as it is", "", "$"),
    Way("helper", "def helper():\n    return $", "helper()"),
    Way("helper of a helper", "def inner():\n    return $\ndef helper():\n    return inner()", "helper()"),
    Way("comprehension", "", "[$ for _ in range(1)][0]"),
    Way("generator", "", "sum($ for _ in range(1))"),
    Way("generator function", "def walk():\n    yield $", "sum(walk())"),
    Way("lambda", "table = {'f': lambda: $}", "table['f']()"),
    Way(
        "decorator",
        "def same(function):\n    @functools.wraps(function)\n    def inner():\n        return function()\n"
        "    return inner\n"
        "@same\ndef helper():\n    return $",
        "helper()",
    ),
    Way("method", "class Owner:\n    def get(self):\n        return $\nowner = Owner()", "owner.get()"),
    Way("static method", "class Owner:\n    @staticmethod\n    def get():\n        return $", "Owner.get()"),
    Way(
        "class method",
        "class Owner:\n    @classmethod\n    def get(cls):\n        return $\nowner = Owner()",
        "owner.get()",
    ),
    Way("property", "class Owner:\n    @property\n    def k(self):\n        return $\nowner = Owner()", "owner.k"),
    Way(
        "cached by hand", "class Owner:\n    def __getitem__(self, key):\n        return $\nowner = Owner()", "owner[0]"
    ),
    Way(
        "inherited method",
        "class Base:\n    def get(self):\n        return $\nclass Owner(Base):\n    pass\nowner = Owner()",
        "owner.get()",
    ),
    Way("context", "@contextlib.contextmanager\ndef opened():\n    yield $", "enter(opened())"),
    Way("partial", "def helper(factor):\n    return $ * factor\ntwice = functools.partial(helper, 1.0)", "twice()"),
    Way("function in C", "def helper(_):\n    return $", "list(map(helper, [0]))[0]"),
    Way("key of a sort", "def helper(one):\n    return one * $", "sorted([1.0], key=helper)[0] * helper(1.0)"),
    Way("reduction", "def helper(one, other):\n    return $", "functools.reduce(helper, [0, 0])"),
    Way("condition", "", "(3.0 if $ == 1.0 else 5.0)", tells=False),
    Way("text", "def helper():\n    one = float($)\n    return float(f'{one:.6f}')", "helper()"),
    Way("format", "", "float('{:.6f}'.format(float($)))"),
    Way(
        "caught",
        "def helper():\n    try:\n        return $\n    except (AttributeError, KeyError):\n        return 7.0",
        "helper()",
    ),
    Way("nested function", "def helper():\n    def inner():\n        return $\n    return inner()", "helper()"),
    Way("layer", "layer = keras.layers.Lambda(lambda x: x * $)", "layer(tf.constant(1.0))"),
    Way("match", "def helper():\n    match ($,):\n        case (one,):\n            return one", "helper()"),
]
