"""The project's own files as text and syntax trees, for the tests of this folder."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kvcs", "moqt", "transport")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".tsv", ".txt", ".cfg", ".yml", ".json", ".sh"}
TEXT_NAMES = {"Makefile", "LICENSE", "run", ".gitignore"}
FOLDERS = {*PACKAGES, "tests", "docs", "benchmarks", "interop", ".ci"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file: path relative to the root with ``/``, its text and its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def at(self, node: ast.expr | ast.stmt | ast.ExceptHandler, what: str) -> str:
        """How an offence is reported."""
        return f"{self.path}:{node.lineno}: {what}"


def source(path: str, text: str) -> Source:
    """A Source from text; planted offences in tests use it directly."""
    return Source(path, text, ast.parse(text, path))


def read(path: Path) -> Source:
    """A Source from a file, with the encoding the file declares."""
    with tokenize.open(path) as file:
        return source(path.relative_to(ROOT).as_posix(), file.read())


@cache
def package_sources() -> tuple[Source, ...]:
    """Every module we ship."""
    return tuple(read(p) for name in PACKAGES for p in sorted((ROOT / name).rglob("*.py")))


@cache
def suite_sources() -> tuple[Source, ...]:
    """Every Python file under tests."""
    return tuple(read(p) for p in sorted((ROOT / "tests").rglob("*.py")))


def text_files() -> Iterator[Path]:
    """Every text file of the repository, caches and virtual environments left out."""
    for top in sorted(ROOT.iterdir()):
        inside = sorted(top.rglob("*")) if top.name in FOLDERS else [top]
        yield from (path for path in inside if path.is_file() and _is_text(path))


def _is_text(path: Path) -> bool:
    return path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function, however deep."""
    return (n for n in ast.walk(tree) if isinstance(n, Function))


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    """Every class, however deep."""
    return (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))


def is_protocol(node: ast.ClassDef) -> bool:
    """True when the class derives from ``typing.Protocol`` directly."""
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def prose(tree: ast.AST) -> set[int]:
    """The ids of strings that stand alone: docstrings and strings under a field."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
