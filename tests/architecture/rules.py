"""The house rules that a syntax tree can show: each yields one line per offence."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from tests.architecture.sources import Function, Source, classes, functions, is_protocol, prose

Rule = Callable[[Source], Iterator[str]]

MAX_MODULE_LINES = 500
MAX_TEST_MODULE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_PUBLIC_METHODS = 20

FORBIDDEN_MODULE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "types", "misc"}
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
#: What the cores may not see, directly or through others (import-linter holds the latter).
CORE_FORBIDS = {"asyncio", "socket", "ssl", "time", "logging", "random", "threading", "aioquic"}
CORE_PREFIXES = ("moqt/codec/", "moqt/session/")
CORE_FILES = {"moqt/counters.py", "moqt/errors.py", "moqt/model.py"}
CORE_FILES |= {f"moqt/relay/{name}.py" for name in ("archive", "cache", "clock", "spans")}
CORE_FILES |= {
    f"kvcs/{name}.py"
    for name in (
        "assembler",
        "cose",
        "geometry",
        "identity",
        "manifest",
        "names",
        "payload",
        "scopes",
        "strictcbor",
        "strictjson",
        "tokens",
        "track_assembler",
    )
}
PROFILE = "moqt/codec/profile.py"
QUARANTINE = "transport/_aioquic.py"
DRAFT = re.compile(r"draft[-_ ]?\d|moqt[-_]\d|\bD\d\d\b", re.IGNORECASE)


def is_core(path: str) -> bool:
    """True for the modules that must stay free of I/O, clocks and third parties."""
    return path in CORE_FILES or path.startswith(CORE_PREFIXES)


def module_size(src: Source) -> Iterator[str]:
    """Modules of at most 500 lines, test modules of at most 600."""
    limit = MAX_TEST_MODULE_LINES if src.path.startswith("tests/") else MAX_MODULE_LINES
    lines = src.text.count("\n")
    if lines > limit:
        yield f"{src.path}: {lines} lines, at most {limit}: split it by what changes together"


def function_size(src: Source) -> Iterator[str]:
    """Functions of at most 60 lines, docstring included."""
    for node in functions(src.tree):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield src.at(node, f"{node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}")


def class_size(src: Source) -> Iterator[str]:
    """Classes of at most 20 public methods, properties included."""
    for node in classes(src.tree):
        public = {n.name for n in node.body if isinstance(n, Function) and n.name[0] != "_"}
        if len(public) > MAX_PUBLIC_METHODS:
            yield src.at(node, f"{node.name} has {len(public)} public methods")


def module_name(src: Source) -> Iterator[str]:
    """No module named after nothing."""
    bad = FORBIDDEN_MODULE_NAMES.intersection(src.module.split("."))
    if bad:
        yield f"{src.path}: name a module for what it holds, not {', '.join(sorted(bad))}"


def _imports(src: Source) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(src.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""


def no_pickle(src: Source) -> Iterator[str]:
    """Nothing that runs code while reading data."""
    for statement, name in _imports(src):
        if name.partition(".")[0] in FORBIDDEN_IMPORTS:
            yield src.at(statement, f"imports {name}")
    for node in ast.walk(src.tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield f"{src.path}:{node.lineno}: allow_pickle"


def core_is_pure(src: Source) -> Iterator[str]:
    """Cores import no I/O, no clock, no chance."""
    if is_core(src.path):
        for node, name in _imports(src):
            if name.partition(".")[0] in CORE_FORBIDS:
                yield src.at(node, f"a core imports {name}; pass what it needs as an argument")


def no_assert(src: Source) -> Iterator[str]:
    """``assert`` vanishes under -O and is no answer to a peer."""
    for node in ast.walk(src.tree):
        if isinstance(node, ast.Assert):
            yield src.at(node, "assert")


def no_swallowing(src: Source) -> Iterator[str]:
    """A catch-all re-raises or carries the reason as a comment on its ``except`` line."""
    lines = src.text.splitlines()
    for node in ast.walk(src.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield src.at(node, "bare except")
            continue
        caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
        raises = any(isinstance(n, ast.Raise) for n in ast.walk(node))
        explained = "  # " in lines[node.lineno - 1]
        if caught & {"Exception", "BaseException"} and not raises and not explained:
            yield src.at(node, "catches everything, neither re-raises nor says why")


def draft_only_in_profile(src: Source) -> Iterator[str]:
    """A draft is a row of the profile: no name, string or comparison about it elsewhere.

    Docstrings and comments may cite a draft, and so may sentences of the command line's help.
    """
    if src.path == PROFILE:
        return
    cited = prose(src.tree)
    for node in ast.walk(src.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in cited:
            help_text = src.path.startswith("kvcs/cli/") and " " in node.value
            if DRAFT.search(node.value) and not help_text:
                yield src.at(node, f"names a draft: {node.value!r}")
        elif isinstance(node, ast.Compare) and "draft" in ast.unparse(node).lower():
            yield src.at(node, f"branches on a draft: {ast.unparse(node)}")
        else:
            yield from _draft_identifier(src, node)


def _draft_identifier(src: Source, node: ast.AST) -> Iterator[str]:
    for field in ("id", "attr", "arg", "name"):
        value = getattr(node, field, None)
        if isinstance(value, str) and DRAFT.search(value):
            yield f"{src.path}:{getattr(node, 'lineno', 0)}: names a draft: {value}"


def private_attributes(src: Source) -> Iterator[str]:
    """In transport, another object's ``_name`` is read only in the quarantine module.

    A name the same module assigns on ``self`` is its own, on whichever object.
    """
    if not src.path.startswith("transport/") or src.path == QUARANTINE:
        return
    attributes = [n for n in ast.walk(src.tree) if isinstance(n, ast.Attribute)]
    own = {n.attr for n in attributes if isinstance(n.ctx, ast.Store) and _is_self(n.value)}
    own |= {n.name for n in functions(src.tree)}
    for node in attributes:
        private = node.attr.startswith("_") and not node.attr.startswith("__")
        if private and node.attr not in own and not _is_self(node.value):
            yield src.at(node, f"{ast.unparse(node)} belongs in {QUARANTINE}")


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def docstrings(src: Source, inherited: frozenset[str] = frozenset()) -> Iterator[str]:
    """Every module, public class and public function says what it is.

    Exempt: dunder methods; Protocol members whose body is ``...``; ``inherited``, the methods that
    a Protocol of the contract documents; overloads and property setters.
    """
    if ast.get_docstring(src.tree) is None:
        yield f"{src.path}: module without docstring"
    yield from _undocumented(src, src.tree, inherited, in_class=False)


def _undocumented(
    src: Source, parent: ast.Module | ast.ClassDef, inherited: frozenset[str], *, in_class: bool
) -> Iterator[str]:
    for node in parent.body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not _exempt(node, inherited, in_class=in_class):
            yield src.at(node, f"{node.name} has no docstring")
        if isinstance(node, ast.ClassDef) and not is_protocol(node):
            yield from _undocumented(src, node, inherited, in_class=True)


def _exempt(node: Function | ast.ClassDef, inherited: frozenset[str], *, in_class: bool) -> bool:
    if isinstance(node, ast.ClassDef):
        return False
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
    return bool(marks & {"overload", "setter", "override"}) or (in_class and node.name in inherited)


def protocol_members(src: Source) -> Iterator[str]:
    """The methods that the Protocols of a module declare."""
    for node in classes(src.tree):
        if is_protocol(node):
            yield from (n.name for n in node.body if isinstance(n, Function))
