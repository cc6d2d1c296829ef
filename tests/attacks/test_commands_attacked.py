"""Commands with hostile files, and with peers whose words are meant for a terminal."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from kvcs.cli.command import Failure, HarmlessFormatter
from kvcs.cli.output import one_line
from kvcs.errors import InvalidInput, OutputFailed
from kvcs.tensorfile import TensorFile, TensorFileWriter, TensorSpec
from moqt.errors import RequestCode, RequestFailed

WORDS = "no\x1b]0;mine\x07\x9b2J\u202eon\r\nerror: all is well"
SPECS = {"a": TensorSpec("I8", (4,))}


def harmless(text: str) -> bool:
    return all(sign.isprintable() for sign in text.removesuffix("\n"))


def test_reasons_in_the_log() -> None:
    error = RequestFailed(RequestCode.INTERNAL_ERROR, WORDS)
    record = logging.LogRecord("kvcs", logging.WARNING, "", 0, "refused: %s", (error,), None)
    shown = HarmlessFormatter("%(levelname)s %(message)s").format(record)
    assert harmless(shown)
    assert shown.startswith("WARNING refused: ")


def test_reasons_in_a_traceback() -> None:
    try:
        raise RequestFailed(RequestCode.INTERNAL_ERROR, WORDS)
    except RequestFailed:
        record = logging.LogRecord("kvcs", logging.ERROR, "", 0, "x", (), sys.exc_info())
    shown = HarmlessFormatter("%(message)s").format(record)
    assert all(harmless(line) for line in shown.split("\n"))
    assert "Traceback" in shown


def test_reasons_in_a_failure(capsys) -> None:
    Failure(WORDS, "RequestFailed").show()
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert harmless(shown)
    assert harmless(one_line(WORDS))


@pytest.mark.parametrize("name", ["fifo", "/dev/zero", "/dev/null", "."])
def test_what_is_no_file_as_a_cache(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "fifo":
        os.mkfifo(path)
    with pytest.raises(InvalidInput, match=r"regular file|cannot be read|too few"):
        TensorFile(path)


@pytest.mark.parametrize("name", ["fifo", "/dev/null", "link", "."])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "fifo":
        os.mkfifo(path)
    elif name == "link":
        path.symlink_to("/dev/null")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OutputFailed, match="would be replaced"):
        TensorFileWriter(path, SPECS)
    assert sorted(tmp_path.iterdir()) == before
    assert os.stat("/dev/null").st_rdev


def test_a_link_is_replaced_and_what_it_names_is_kept(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "out"
    precious.write_text("kept")
    link.symlink_to(precious)
    with TensorFileWriter(link, SPECS) as writer:
        writer.write("a", b"abcd")
        writer.commit()
    assert precious.read_text() == "kept"
    assert not link.is_symlink()


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    """Whoever is last wins, whole."""
    path = tmp_path / "out"
    with TensorFileWriter(path, SPECS) as one, TensorFileWriter(path, SPECS) as two:
        one.write("a", b"1111")
        two.write("a", b"2222")
        two.commit()
        one.commit()
    assert bytes(TensorFile(path).view("a")) == b"1111"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_header_of_many_tensors(tmp_path: Path) -> None:
    entry = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header = b"{" + b",".join(b'"%d":%b' % (number, entry) for number in range(200_000)) + b"}"
    path = tmp_path / "many"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InvalidInput, match=r"JSON values|header of"):
        TensorFile(path)
