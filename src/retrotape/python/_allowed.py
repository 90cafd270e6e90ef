"""What may be met while code is observed: types whose state is known, and functions in C that have none."""

from __future__ import annotations

import _thread
import array
import builtins
import collections
import contextvars
import datetime
import decimal
import fractions
import functools
import operator
import os
import random
import re
import sys
import threading
import time
import types
import warnings
import weakref
from inspect import CO_NESTED
from typing import Any

import numpy as np

# ------------------------------------------------------------------ types, exactly

# Values that do not change, and are interchangeable if they are equal.
_DATES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)
ATOMS: set[type] = {
    *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, slice),
    *(types.CodeType, types.GenericAlias, types.UnionType, re.Pattern, decimal.Decimal, fractions.Fraction, *_DATES),
}
# What has no state that anything but a method in C reads: these methods are not on the list of functions below.
OPAQUE: set[type] = {object, type(threading.Lock()), type(threading.RLock()), re.Match, operator.itemgetter}
OPAQUE |= {types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType}
OPAQUE |= {types.GetSetDescriptorType, types.MemberDescriptorType, np.ufunc, type(np.mean), contextvars.Token}
OPAQUE.add(type(vars(collections.namedtuple("_Any", "field"))["field"]))
# Types whose objects contain others, each with the type by whose methods that is read.
CONTAINERS: dict[type, type] = {
    list: list,
    tuple: tuple,
    dict: dict,
    set: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
    collections.OrderedDict: collections.OrderedDict,
    collections.defaultdict: dict,
}
ARRAYS = frozenset((np.ndarray, np.recarray, np.matrix, bytearray, array.array))
# Other types in C of which classes in Python may be derived, and which keep nothing that is not looked at elsewhere.
BASES: frozenset[Any] = frozenset(
    {
        *(object, int, float, complex, str, bytes, type, BaseException, Exception, property, functools.partial),
        *(threading.local, random.Random, random.Random.__base__, types.ModuleType, types.SimpleNamespace),
        *(decimal.Decimal, *_DATES),
    }
)
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)


def allow_atoms(*kinds: type) -> None:
    """Let values of these types count as values that do not change."""
    ATOMS.update(kinds)


def is_atom(kind: type) -> bool:
    """Return whether values of a type do not change, and are interchangeable if they are equal."""
    if kind in ATOMS:
        return True
    is_number = issubclass(kind, (np.generic, np.dtype)) and not issubclass(kind, np.void)
    return is_number and kind.__module__.partition(".")[0] in ("numpy", "ml_dtypes")


# ------------------------------------------------------------------ functions in C

_IMPURE = (builtins.open, builtins.input, builtins.breakpoint, builtins.globals, builtins.__import__)
_PURE_MODULES = frozenset(
    """
    _abc _bisect _blake2 _collections _contextvars _datetime _functools _hashlib _heapq _json _md5 _operator _sha1 _sha2
    _sha256 _sha3 _sha512 _sre _statistics _stat _string _struct _typing _weakref binascii builtins cmath itertools math
    ml_dtypes optree._C typing unicodedata zlib
    """.split()  # noqa: SIM905
)
_LIBRARIES = ("numpy", "tensorflow", "keras", "retrotape", "ml_dtypes", "_pywrap")
_PURE = {
    os.fspath,
    time.sleep,
    _thread.allocate_lock,
    _thread.get_ident,
    sys.intern,
    sys.exc_info,
    sys._getframe,
    warnings.warn,
}
# Functions that see attributes of their arguments which no code names.
SEES_ALL = frozenset(
    getattr(builtins, name)
    for name in ["delattr", "dir", "eval", "exec", "format", "getattr", "hasattr", "repr", "setattr", "sorted", "vars"]
)
METHODS_THAT_SEE_ALL = frozenset(
    """
    __delattr__ __dir__ __eq__ __format__ __getattribute__ __getstate__ __ne__ __reduce__ __reduce_ex__ __repr__
    __setattr__ __str__ format format_map
    """.split()  # noqa: SIM905
)
_CLOCKS = frozenset(("now", "utcnow", "today"))
_BY_TIME_ZONE = frozenset(("astimezone", "fromtimestamp", "timestamp"))
_OF_THE_SYSTEM = frozenset(("posix", "nt", "_socket", "select", "resource", "_posixsubprocess", "fcntl", "pwd"))
_OF_PATHS = frozenset(("fspath", "_path_normpath", "_path_splitroot", "_path_splitroot_ex"))  # of texts alone
# Methods in C that change, or tell, what cannot be compared.
_READING_METHODS: dict[Any, frozenset[str]] = {
    **dict.fromkeys((type(threading.Lock()), type(threading.RLock())), frozenset(("locked", "_is_owned"))),
    random.Random: frozenset(("seed",)),
    random.Random.__base__: frozenset(("seed",)),
}
_WITH_STATE_TOLD: frozenset[type] = frozenset(
    {
        *(
            types.MappingProxyType,
            weakref.ref,
            contextvars.ContextVar,
            contextvars.Token,
            contextvars.Context,
            functools.partial,
            re.Pattern,
        ),
        *(re.Match, types.GeneratorType, types.CoroutineType, type(threading.Lock()), type(threading.RLock()), type),
        *(types.FunctionType, types.MethodType, types.CodeType, types.FrameType, types.TracebackType, types.CellType),
    }
)


def why_impure(function: Any, owner: Any) -> str | None:
    """Return what a function in C depends on besides its arguments, for a message; None if nothing.

    Args:
      function: The function, or method.
      owner: The object that it is a method of; None, or a module, if it is no method.

    >>> why_impure(len, None)
    >>> why_impure(time.time, time)
    'it reads the clock'
    """
    name = getattr(function, "__name__", type(function).__name__)
    if owner is not None and type(owner) is not types.ModuleType:
        return _why_impure_method(name, owner)
    if function in _PURE:
        return None
    module = str(getattr(function, "__module__", None) or getattr(owner, "__name__", ""))
    if function in _IMPURE or module in ("io", "_io"):
        return f"it calls `{name}`"
    if module == "time":
        return "it reads the clock"
    if module in _OF_THE_SYSTEM:
        if name in _OF_PATHS:
            return None
        return f"it asks the operating system, by `{name}`"
    is_pure = module in _PURE_MODULES or (module.startswith(_LIBRARIES) and not module.startswith("numpy.random"))
    return None if is_pure else f"it calls `{module}.{name}`, which may depend on more than its arguments"


def _why_impure_method(name: str, owner: Any) -> str | None:
    if issubclass(type(owner), type):  # a method of a class
        return _why_impure_of_dates(name, owner, None) if issubclass(owner, datetime.date) else None
    kind = type(owner)
    if isinstance(owner, datetime.datetime):
        why = _why_impure_of_dates(name, kind, owner)
        if why is not None:
            return why
    for base in kind.__mro__:
        if name in _READING_METHODS.get(base, ()):
            return f"it calls `{name}` of an object of type {kind.__module__}.{kind.__qualname__}"
    if name == "write" and hasattr(kind, "fileno"):
        return None if owner in (sys.stdout, sys.stderr) else "it writes to a file"
    if name == "flush" and owner in (sys.stdout, sys.stderr):
        return None
    known = (
        kind in CONTAINERS
        or kind in ARRAYS
        or is_atom(kind)
        or kind in _WITH_STATE_TOLD
        or issubclass(kind, GENERATORS)
    )
    if known or is_defined_in_python(kind) or kind.__module__.startswith(_LIBRARIES):
        return None
    return f"it calls `{name}` of an object of type {kind.__module__}.{kind.__qualname__}, whose state is not known"


def _why_impure_of_dates(name: str, kind: type, owner: datetime.datetime | None) -> str | None:
    if name in _CLOCKS:
        return "it reads the clock"
    is_told = name == "timestamp" and owner is not None and owner.tzinfo is not None
    return f"it reads the time zone of the machine, by `{name}`" if name in _BY_TIME_ZONE and not is_told else None


def why_impure_type(kind: type) -> str | None:
    """Return what making an object of a type in C depends on, for a message; None if it depends on nothing."""
    if kind is np.datetime64:
        return "it makes a date by `numpy.datetime64`, which may read the clock"
    if issubclass(kind, GENERATORS[1:]):
        return "it makes a generator of random numbers"
    module = kind.__module__
    known = is_atom(kind) or kind in CONTAINERS or kind in OPAQUE or kind in _WITH_STATE_TOLD or kind in BASES
    if known or is_defined_in_python(kind) or module in _PURE_MODULES or module.startswith(_LIBRARIES):
        return None
    if module in ("collections", "functools", "types", "re", "weakref", "contextvars", "datetime", "decimal"):
        return None
    return f"it makes an object of type {module}.{kind.__qualname__}, whose state is not known"


_HEAP_TYPE = 1 << 9
_OF_PYTHON = ("__dict__", "__weakref__", "__slots__")


def is_defined_in_python(kind: type) -> bool:
    """Return whether a class was made by a `class` statement: all that is its own in objects are attributes."""
    if not kind.__flags__ & _HEAP_TYPE:
        return False
    own = vars(kind)
    if any(name in own for name in _OF_PYTHON):
        return True
    base = kind.__base__
    if base is None or "__module__" not in own:
        return False
    return is_defined_in_python(base) or kind.__basicsize__ == base.__basicsize__


# ------------------------------------------------------------------ functions of libraries that read state

# Files of libraries, and functions in them, that read files or settings when user code calls them.
_READING_FILES = (
    "numpy/_core/arrayprint.py",
    "numpy/_core/memmap.py",
    "numpy/core/arrayprint.py",
    "numpy/core/memmap.py",
    "numpy/lib/_datasource.py",
    "numpy/lib/_npyio_impl.py",
    "numpy/lib/npyio.py",
    "tensorflow/python/framework/config.py",
    "tensorflow/python/lib/io/file_io.py",
    "tensorflow/python/platform/gfile.py",
    "keras/src/saving/saving_api.py",
    "keras/src/utils/file_utils.py",
    "keras/src/utils/io_utils.py",
    "keras/src/utils/traceback_utils.py",
    "/importlib/__init__.py",
)
# What makes functions of TensorFlow out of functions of Python, which run when they are traced only.
_MAKERS = (
    ("tensorflow/python/eager/polymorphic_function/polymorphic_function.py", "function"),
    ("tensorflow/python/autograph/impl/api.py", "to_graph"),
)
# Files of the standard library whose functions exchange data with other threads and processes.
_EXCHANGES = ("/queue.py", "/subprocess.py", "/socket.py", "/selectors.py")
_EXCHANGE_FOLDERS = ("/multiprocessing/", "/asyncio/", "/concurrent/futures/")


@functools.lru_cache(4096)
def reads_state(code: types.CodeType) -> bool:
    """Return whether code of a library reads files or settings; decorators in such files are no such code."""
    return code.co_filename.replace("\\", "/").endswith(_READING_FILES) and not code.co_flags & CO_NESTED


@functools.lru_cache(4096)
def makes_function(code: types.CodeType) -> bool:
    """Return whether code of TensorFlow makes a function out of one of Python."""
    path = code.co_filename.replace("\\", "/")
    return any(path.endswith(file) and code.co_name == name for file, name in _MAKERS)


@functools.lru_cache(4096)
def exchanges_data(file: str) -> bool:
    """Return whether functions in a file exchange data with other threads and processes."""
    path = file.replace("\\", "/")
    return path.endswith(_EXCHANGES) or any(folder in path for folder in _EXCHANGE_FOLDERS)
