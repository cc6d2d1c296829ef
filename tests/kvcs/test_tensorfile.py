"""safetensors in and out: against the library, the demo file, and hostile headers."""

from __future__ import annotations

import json
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcs.errors import InvalidInput, OutputFailed
from kvcs.tensorfile import ELEMENT_OCTETS, MAX_HEADER, TensorFile, TensorFileWriter, TensorSpec

SMALL: dict[str, Any] = {
    "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "I32", "shape": [], "data_offsets": [12, 16]},
    "none": {"dtype": "F64", "shape": [0, 7], "data_offsets": [16, 16]},
}
DATA = bytes(range(16))


def octets(header: object, data: bytes = DATA, *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


# ---------------------------------------------------------------------------------------- reading


def test_a_file_by_hand(path: Path) -> None:
    path.write_bytes(octets({"__metadata__": {"k": "v"}, **SMALL}))
    with TensorFile(path) as file:
        assert file.metadata == {"k": "v"}
        assert file.tensors == {
            "a": TensorSpec("BF16", (2, 3)),
            "b": TensorSpec("I32", ()),
            "none": TensorSpec("F64", (0, 7)),
        }
        assert file.view("a") == DATA[:12]
        assert file.view("a").readonly
        assert file.view("b") == DATA[12:]
        assert file.view("none") == b""
        with pytest.raises(InvalidInput, match="has no tensor 'c'"):
            file.view("c")


def test_views_outlive_the_file(path: Path) -> None:
    path.write_bytes(octets(SMALL))
    with TensorFile(path) as file:
        view = file.view("a")
    path.unlink()
    assert view == DATA[:12]


def test_what_the_library_writes_is_read(path: Path) -> None:
    random = np.random.default_rng(1)
    tensors = {
        name: (random.standard_normal((3, 2, 5)) * 20).astype(name)
        for name in ("float64", "float32", "float16", "int8", "uint8", "int32", "uint64", "bool")
    }
    safetensors.numpy.save_file(tensors, path, {"who": "library"})
    with TensorFile(path) as file:
        assert file.metadata == {"who": "library"}
        assert file.tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert file.view(name) == tensor.tobytes()
            assert file.tensors[name].shape == (3, 2, 5)


@pytest.mark.parametrize("code", ELEMENT_OCTETS)
def test_the_library_agrees_on_every_dtype(path: Path, code: str) -> None:
    spec = TensorSpec(code, (3, 2))
    with TensorFileWriter(path, {"x": spec}) as writer:
        writer.write("x", bytes(range(spec.octets)))
        writer.commit()
    ((name, found),) = safetensors.deserialize(path.read_bytes())
    assert (name, found["dtype"], found["shape"]) == ("x", code, [3, 2])
    assert bytes(found["data"]) == bytes(range(spec.octets))


def _changed(name: str, **change: object) -> dict[str, Any]:
    return SMALL | {name: SMALL[name] | change}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 octets are too few"),
    "seven octets": (b"\0" * 7, "7 octets are too few"),
    "no header": (bytes(8), "Expecting value"),
    "huge length": (octets(SMALL, length=(1 << 64) - 1), "header of 18446744073709551615 octets"),
    "length over cap": (octets(SMALL, length=MAX_HEADER + 1), "header of 16777217 octets"),
    "length over file": (octets(SMALL, b"", length=5000), "header of 5000 octets: the file has"),
    "length short": (octets(SMALL, length=10), "not that of safetensors"),
    "no json": (octets(b"{]"), "not that of safetensors"),
    "leading blank": (octets(b" {}"), "must begin with {"),
    "list": (octets([]), "must begin with {"),
    "not utf-8": (octets(b'{"\xff":1}'), "not UTF-8"),
    "twice": (octets(b'{"a":1,"a":1}'), "'a' occurs twice"),
    "deep": (octets(b'{"a":' * 50_000), "nested deeper|Expecting"),
    "nan": (octets(b'{"a":NaN}'), "NaN is not JSON"),
    "many": (octets(b'{"a":[' + b"0," * (1 << 20) + b"0]}"), "more than 1048576 JSON values"),
    "metadata number": (octets({"__metadata__": {"a": 1}, **SMALL}), "map texts to texts"),
    "metadata list": (octets({"__metadata__": [], **SMALL}), "map texts to texts"),
    "entry": (octets({"a": 1}), "must have dtype, shape and data_offsets"),
    "entry short": (octets({"a": {"dtype": "I8", "shape": []}}), "must have dtype"),
    "entry long": (octets(_changed("a", more=1)), "must have dtype"),
    "dtype unknown": (octets(_changed("a", dtype="F7")), "'a' is of unknown dtype 'F7'; known"),
    "dtype number": (octets(_changed("a", dtype=1)), "unknown dtype 1"),
    "dtype list": (octets(_changed("a", dtype=[])), "unknown dtype"),
    "shape negative": (octets(_changed("a", shape=[-2, -3])), "whole numbers"),
    "shape float": (octets(_changed("a", shape=[2.0, 3])), "whole numbers"),
    "shape bool": (octets(_changed("a", shape=[True, 6])), "whole numbers"),
    "shape text": (octets(_changed("a", shape="23")), "whole numbers"),
    "shape huge": (octets(_changed("a", shape=[1 << 63])), "whole numbers"),
    "shape overflow": (octets(_changed("a", shape=[1 << 62, 1 << 62])), "12 octets from 0 to 12"),
    "shape wrong": (octets(_changed("a", shape=[2, 2])), "BF16 of shape .* takes 8"),
    "offsets one": (octets(_changed("a", data_offsets=[12])), "whole numbers"),
    "offsets negative": (octets(_changed("a", data_offsets=[-12, 0])), "whole numbers"),
    "offsets reversed": (octets(_changed("a", data_offsets=[12, 0])), "-12 octets from 12 to 0"),
    "overlap": (octets(_changed("b", data_offsets=[8, 12])), "'b' at octet 8 overlaps"),
    "same place": (octets(SMALL | {"c": SMALL["a"]}), "overlaps the one before it"),
    "hole": (octets(_changed("b", data_offsets=[13, 17]), DATA + b"x"), "'b' at octet 13 leaves"),
    "hole at start": (octets({"b": SMALL["b"]}), "'b' at octet 12 leaves a hole"),
    "data short": (octets(SMALL, DATA[:15]), "tensors take 16 octets of data, the file has 15"),
    "data long": (octets(SMALL, DATA + b"x"), "tensors take 16 octets of data, the file has 17"),
    "nothing but data": (octets({}, DATA), "tensors take 0 octets"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(path: Path, case: str) -> None:
    content, message = HOSTILE[case]
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        TensorFile(path)
    assert str(caught.value).startswith(f"file {path}: ")


def test_the_library_refuses_the_same_places(path: Path) -> None:
    for case in (
        "overlap",
        "same place",
        "hole at start",
        "data short",
        "data long",
        "shape wrong",
    ):
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(HOSTILE[case][0])


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        TensorFile(tmp_path / "none")
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        TensorFile(tmp_path)


@given(st.binary(max_size=60) | st.binary(max_size=200).map(lambda text: octets(b"{" + text)))
def test_any_octets_are_read_or_refused(content: bytes) -> None:
    handle = os.memfd_create("fuzz")
    try:
        os.write(handle, content)
        with pytest.raises(InvalidInput):
            TensorFile(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


# ---------------------------------------------------------------------------------------- writing


def test_what_is_written_the_library_reads(path: Path) -> None:
    k = np.arange(24, dtype=np.float32).reshape(4, 3, 2).astype(ml_dtypes.bfloat16)
    ids = np.arange(4, dtype=np.uint32)
    specs = {"k.0": TensorSpec("BF16", (4, 3, 2)), "tokens": TensorSpec("U32", (4,))}
    with TensorFileWriter(path, specs, {"model": "m\u00e9"}) as writer:
        writer.write("k.0", k.tobytes()[12:], 12)
        writer.write("tokens", ids)  # type: ignore[arg-type]
        assert list(path.parent.iterdir()) != []
        assert not path.exists()
        writer.write("k.0", k.tobytes()[:12])
        writer.commit()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with safetensors.safe_open(path, "numpy") as found:
        assert found.metadata() == {"model": "m\u00e9"}
        assert (found.get_tensor("tokens") == ids).all()
    tensors = dict(safetensors.deserialize(path.read_bytes()))
    assert bytes(tensors["k.0"]["data"]) == k.tobytes()
    assert path.stat().st_size == writer.octets
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    with TensorFile(path) as file:
        assert file.tensors == specs
        assert file.view("k.0") == k.tobytes()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


SPECS = st.dictionaries(
    st.text(min_size=1, max_size=4).filter(lambda name: name.isprintable()),
    st.builds(
        TensorSpec,
        st.sampled_from(sorted(ELEMENT_OCTETS)),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
    ),
    max_size=5,
)


@settings(max_examples=30)
@given(SPECS, st.randoms(use_true_random=False))
def test_any_tensors_go_both_ways(
    tmp_path_factory: pytest.TempPathFactory, specs: dict[str, TensorSpec], random: Any
) -> None:
    path = tmp_path_factory.mktemp("any") / "x"
    tensors = {name: random.randbytes(spec.octets) for name, spec in specs.items()}
    with TensorFileWriter(path, specs) as writer:
        for name in sorted(specs, key=lambda _: random.random()):
            cut = random.randint(0, len(tensors[name]))
            writer.write(name, tensors[name][cut:], cut)
            if cut:
                writer.write(name, tensors[name][:cut])
        writer.commit()
    found = dict(safetensors.deserialize(path.read_bytes()))
    assert {name: bytes(entry["data"]) for name, entry in found.items()} == tensors
    with TensorFile(path) as file:
        assert file.tensors == specs
        assert {name: bytes(file.view(name)) for name in specs} == tensors
        # safetensors aligns the data; ours is aligned to each element as well
        start = path.stat().st_size - sum(spec.octets for spec in specs.values())
        assert start % 8 == 0
        for name, spec in specs.items():
            assert file._offsets[name] % ELEMENT_OCTETS[spec.dtype] == 0


def test_nothing_is_left_without_commit(path: Path) -> None:
    path.write_bytes(b"what was there")
    with TensorFileWriter(path, {"a": TensorSpec("I8", (2,))}) as writer:
        writer.write("a", b"ab")
    assert path.read_bytes() == b"what was there"
    with (
        pytest.raises(KeyboardInterrupt),
        TensorFileWriter(path, {"a": TensorSpec("I8", (2,))}),
    ):
        raise KeyboardInterrupt
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_commit_replaces_what_was_there(path: Path) -> None:
    path.write_bytes(b"what was there")
    with TensorFileWriter(path, {}) as writer:
        writer.commit()
    assert TensorFile(path).tensors == {}


@pytest.mark.parametrize(
    ("name", "data", "offset", "message"),
    [
        ("b", b"x", 0, "tensor 'b' was not declared"),
        ("a", b"xyz", 0, "octets 0 to 3 of tensor 'a' cannot be written: it has 2"),
        ("a", b"x", 2, "octets 2 to 3"),
        ("a", b"x", -1, "octets -1 to 0"),
        ("a", b"x", 0, "each to be written once"),
    ],
)
def test_writes_that_do_not_fit(
    path: Path, name: str, data: bytes, offset: int, message: str
) -> None:
    with TensorFileWriter(path, {"a": TensorSpec("I8", (2,))}) as writer:
        writer.write("a", b"x")
        with pytest.raises(InvalidInput, match=message):
            writer.write(name, data, offset)


def test_commit_needs_every_octet(path: Path) -> None:
    for parts in ((), (0,), (1,), (0, 2), (1, 2)):
        with TensorFileWriter(path, {"a": TensorSpec("I8", (3,))}) as writer:
            for offset in parts:
                writer.write("a", b"x", offset)
            with pytest.raises(InvalidInput, match="tensor 'a' was not written whole"):
                writer.commit()
    assert list(path.parent.iterdir()) == []


def test_overlapping_writes_do_not_count_twice(path: Path) -> None:
    with TensorFileWriter(path, {"a": TensorSpec("I8", (4,))}) as writer:
        writer.write("a", b"xx", 0)
        writer.write("a", b"yy", 1)
        with pytest.raises(InvalidInput, match="not written whole"):
            writer.commit()


def test_names_that_cannot_be_written(path: Path) -> None:
    with pytest.raises(InvalidInput, match="__metadata__"):
        TensorFileWriter(path, {"__metadata__": TensorSpec("I8", ())})
    with pytest.raises(InvalidInput, match="must be Unicode"):
        TensorFileWriter(path, {}, {"model": "\udcff"})
    assert list(path.parent.iterdir()) == []


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputFailed, match=r"no/x cannot be written: No such file"):
        TensorFileWriter(tmp_path / "no" / "x", {})


@contextmanager
def small_disk(octets: int) -> Iterator[None]:
    """Files cannot grow beyond this: the system refuses as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (octets, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_too_small_is_found_at_once(path: Path) -> None:
    with (
        small_disk(1 << 16),
        pytest.raises(OutputFailed, match=rf"{path.name} cannot be written: .*needs 1\d{{5}} oct"),
    ):
        TensorFileWriter(path, {"a": TensorSpec("I8", (100_000,))})
    assert list(path.parent.iterdir()) == []


def test_a_disk_that_fills_while_writing(path: Path) -> None:
    writer = TensorFileWriter(path, {"a": TensorSpec("I8", (100_000,))})
    with small_disk(1 << 10), pytest.raises(OutputFailed, match="cannot be written"):
        writer.write("a", bytes(100_000))
    assert list(path.parent.iterdir()) == []


def test_a_target_that_is_a_directory(path: Path) -> None:
    with TensorFileWriter(path, {}) as writer:
        path.mkdir()
        with pytest.raises(OutputFailed, match="cannot be written"):
            writer.commit()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
