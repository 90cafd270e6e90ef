"""Kinds of Python state that users keep in objects of libraries, and values that are equal but not the same."""

from __future__ import annotations

from playback.state_kinds import Kind

_PRIVATE = ("h._k = 2.0", "setattr(h, '_k', 3.0)")
_TENSORS = "[tf.constant(1.0)]"
_TENSOR = ("h._k[0] = tf.constant(2.0)",)
_NODE = """class Node(keras.layers.Layer):
    __module__ = 'node'
    def __init__(self):
        super().__init__()
        self.factor = 1.0
    def call(self, x):
        return x * self.factor
h = Node()"""
_MODEL = "h = keras.Sequential([keras.layers.Dense(1)])\nh.build([None, 1])"
_NOON = "h = datetime.datetime(2020, 10, 25, 2, 30, tzinfo=datetime.timezone.utc)"
_ONE_HOUR = "datetime.timezone(datetime.timedelta(hours=1))"

KINDS = [
    Kind("layer with the name of a class of Keras", _NODE, "float(h(tf.constant(1.0)))", ("h.factor = 2.0",)),
    Kind(
        "whether a model stops",
        f"{_MODEL}\nh.stop_training = False",
        "(2.0 if h.stop_training else 1.0)",
        ("h.stop_training = True",),
    ),
    Kind("history of a model", f"{_MODEL}\nh.history = 1.0", "h.history", ("h.history = 2.0",)),
    Kind("tensors in a layer", f"h = keras.layers.Dense(2)\nh._k = {_TENSORS}", "float(h._k[0])", _TENSOR, plays=False),
    Kind("tensors in a metric", f"h = keras.metrics.Mean()\nh._k = {_TENSORS}", "float(h._k[0])", _TENSOR, plays=False),
    Kind(
        "arrays in a model",
        f"{_MODEL}\nh._k = {{'a': np.ones(1)}}",
        "float(h._k['a'][0])",
        ("h._k['a'][0] = 2.0", "h._k['a'] = np.zeros(1)"),
    ),
    Kind("private attribute of a variable", "h = tf.Variable(1.0)\nh._k = 1.0", "h._k", _PRIVATE),
    Kind("private attribute of a Keras variable", "h = keras.Variable(1.0)\nh._k = 1.0", "h._k", _PRIVATE),
    Kind("private attribute of a tensor", "h = tf.constant(1.0)\nh._k = 1.0", "h._k", _PRIVATE),
    Kind(
        "new private attribute of a tensor",
        "h = tf.constant(1.0)",
        "getattr(h, '_k', 1.0)",
        ("h._k = 2.0", "del h._k"),
    ),
    Kind("name scope of a module", "h = tf.Module()\nh._name_scope = 1.0", "h._name_scope", ("h._name_scope = 2.0",)),
    Kind("attribute of a graph function", "h = tf.function(lambda x: x)\nh._k = 1.0", "h._k", _PRIVATE),
    Kind("attribute of a dataset", "h = tf.data.Dataset.range(1)\nh._k = 1.0", "h._k", _PRIVATE),
    Kind("attribute of a logger", "h = logging.getLogger('h')\nh._k = 1.0", "h._k", _PRIVATE),
    Kind(
        "handlers of a logger",
        "h = logging.Logger('h')",
        "float(len(h.handlers))",
        ("h.addHandler(logging.NullHandler())",),
    ),
    Kind("moment in a time zone", _NOON, "float(h.hour)", (f"h = h.astimezone({_ONE_HOUR})",)),
    Kind("moment that comes twice", _NOON, "float(h.fold)", ("h = h.replace(fold=1)",)),
    Kind(
        "name of a time zone",
        "h = datetime.timezone(datetime.timedelta(0), 'A')",
        "float(len(h.tzname(None)))",
        ("h = datetime.timezone(datetime.timedelta(0), 'ABC')",),
    ),
    Kind(
        "digits of a decimal",
        "h = decimal.Decimal('1.0')",
        "float(len(str(h)))",
        ("h = decimal.Decimal('1.000')",),
    ),
    Kind(
        "sign of a decimal",
        "h = decimal.Decimal(0)",
        "float(h.copy_sign(1) == h and h.is_signed())",
        ("h = decimal.Decimal('-0')",),
    ),
    Kind(
        "time zone of the machine",
        "import time\nos.environ['TZ'] = 'UTC'\ntime.tzset()\nh = datetime.datetime(2020, 1, 1, 12)",
        "(h.timestamp() % 86400 / 3600)",
        ("os.environ['TZ'] = 'Asia/Tokyo'\ntime.tzset()", "os.environ['TZ'] = 'UTC'\ntime.tzset()"),
        False,
    ),
]
