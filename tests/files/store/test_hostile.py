from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest

from files.store import forge
from files.store.hostile import ATTACKS, Attack
from files.store.reading import read_all
from retrotape.errors import RetrotapeError
from retrotape.files.store import Limits, open_tape

MEGABYTES = 256  # a hostile tape.json is held, and copied twice, before it is refused

JSON_MEMORY = 13_073  # of the good tape


class Built(NamedTuple):
    """An attack, and where it lies."""

    name: str
    attack: Attack
    path: Path


@pytest.fixture(scope="module", params=ATTACKS)
def built(request, tmp_path_factory) -> Built:
    attack = ATTACKS[request.param]
    return Built(request.param, attack, attack.build(tmp_path_factory.mktemp("attack")))


def test_it_is_refused_for_what_it_is(built):
    _, attack, path = built
    begin = time.process_time()
    with pytest.raises(RetrotapeError) as caught:
        read_all(path, limits=attack.limits)
    spent = time.process_time() - begin
    text = str(caught.value)
    assert type(caught.value) is attack.error, text
    assert re.search(attack.text, text), text
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) < 600 + len(str(path))
    assert isinstance(caught.value, ValueError)
    assert caught.value.path == str(path)
    assert spent < 1


def test_it_is_refused_without_much_memory(built):
    _, attack, path = built
    tracemalloc.start()
    try:
        with pytest.raises(attack.error):
            read_all(path, limits=attack.limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEGABYTES << 20


def test_there_are_many():
    assert len(ATTACKS) >= 230


# What lies beside the data, and is no part of them, is only looked at when everything is verified.
BESIDE = {"something_hidden_in_the_padding", "one_byte_hidden_before_a_tensor"}


def test_it_is_refused_without_asking_for_verification(built):
    name, attack, path = built
    if name in BESIDE:
        assert read_all(path, verify=False)["values"]["leaf"] == forge.LEAF
        return
    with pytest.raises(attack.error):
        read_all(path, limits=attack.limits, verify=False)


@pytest.mark.parametrize("name", ["tensor_that_was_exchanged", "data_that_were_exchanged", "data_of_another_size"])
def test_verification_looks_at_the_tensors_too(name, tmp_path):
    attack = ATTACKS[name]
    with open_tape(attack.build(tmp_path)) as tape, pytest.raises(attack.error, match=attack.text):
        tape.verify()


# ------------------------------------------------------------------ the forger itself: without a lie its tapes are good


def test_the_file_that_the_attacks_start_from_is_good(tmp_path):
    path = tmp_path / "good.tape"
    path.write_bytes(forge.file())
    found = read_all(path)
    assert found["entries"] == forge.ENTRIES
    assert found["meta"] == {"note": "a good tape"}
    assert found["values"] == {"flags": forge.FLAGS, "leaf": forge.LEAF, "words": [b"ab", b"", b"cde"]}


def test_the_folder_that_the_attacks_start_from_is_good(tmp_path):
    (tmp_path / "good.tape").write_bytes(forge.file())
    assert read_all(forge.folder(tmp_path / "folder.tape")) == read_all(tmp_path / "good.tape")


def test_a_limit_is_the_most_that_is_allowed(tmp_path):
    path = tmp_path / "good.tape"
    path.write_bytes(forge.file())
    header = len(forge.padded(forge.header())) + 8
    exact = Limits(json_memory=JSON_MEMORY, entries=3, tensors=4, total_bytes=64, program_bytes=17, header_bytes=header)
    read_all(path, limits=exact)
    for field in ("json_memory", "entries", "tensors", "total_bytes", "program_bytes", "header_bytes"):
        with pytest.raises(RetrotapeError, match=rf"Limits\({field}={getattr(exact, field)}\)"):
            read_all(path, limits=exact._replace(**{field: getattr(exact, field) - 1}))
