"""safetensors files: memory-mapped reading, and writing layer by layer (docs/decisions/0003)."""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import re
import secrets
import stat
import struct
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kvcs import strictjson
from kvcs.errors import InvalidInput, OutputFailed
from kvcs.identity import LAYOUT, CompatibilityDescriptor, DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcs.names import Component
    from transport.api import BytesLike

_LENGTH: Final = struct.Struct("<Q")
#: A hundred layers take 16 KiB of header; what passes this is no KV cache.
MAX_HEADER: Final = 16 << 20
#: Commas and brackets: some eight a tensor.
MAX_VALUES: Final = 1 << 20
#: Dimensions of one tensor, as in numpy: the product of a million sizes takes hours to compute.
MAX_DIMENSIONS: Final = 64
#: Tensors start at multiples of this, as the safetensors library wants it.
ALIGNMENT: Final = 8
METADATA: Final = "__metadata__"

#: Octets of one element, by the format's own names.
ELEMENT_OCTETS: Final = MappingProxyType(
    {
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
        **dict.fromkeys(("U32", "I32", "F32"), 4),
        **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
    }
)

#: Our dtypes under the format's names.
CODES: Final = MappingProxyType(
    {
        DType.FLOAT64: "F64",
        DType.FLOAT32: "F32",
        DType.FLOAT16: "F16",
        DType.BFLOAT16: "BF16",
        DType.FLOAT8_E4M3FN: "F8_E4M3",
        DType.FLOAT8_E5M2: "F8_E5M2",
        DType.INT8: "I8",
        DType.UINT8: "U8",
    }
)


class TensorSpec(NamedTuple):
    """Type, by the format's name, and shape of one tensor in C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def octets(self) -> int:
        """Octets of all elements."""
        return math.prod(self.shape) * ELEMENT_OCTETS[self.dtype]


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class TensorFile:
    """A safetensors file, mapped and wholly validated; ``view`` copies nothing.

    Raises InvalidInput naming the file, the tensor and the rule. Views stay good after ``close``:
    the mapping goes when the last of them does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            # A pipe must not block here before it is seen to be none of ours.
            with open(self.path, "rb", opener=_open_at_once) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise self._refuse("must be a regular file, to be mapped")
                size = found.st_size
                head = file.read(_LENGTH.size)
                if len(head) < _LENGTH.size:
                    raise self._refuse(f"{size} octets are too few for a safetensors file")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._refuse(f"cannot be read: {error.strerror or error}") from None
        (length,) = _LENGTH.unpack(head)
        if length > min(MAX_HEADER, size - _LENGTH.size):
            raise self._refuse(
                f"header of {length} octets: the file has {size}, and {MAX_HEADER} is most; it is"
                " no safetensors file"
            )
        start = _LENGTH.size + length
        self._data = memoryview(self._map)[start:]
        self.tensors: Mapping[str, TensorSpec]
        self.metadata: Mapping[str, str]
        self._offsets: dict[str, int] = {}
        self._parse(self._map[_LENGTH.size : start])

    def view(self, name: str) -> memoryview:
        """Octets of one tensor, read-only; raises InvalidInput when there is none of that name."""
        spec = self.tensors.get(name)
        if spec is None:
            raise self._refuse(f"has no tensor {name!r}")
        at = self._offsets[name]
        return self._data[at : at + spec.octets]

    def close(self) -> None:
        """Let go of the file."""
        self._data.release()
        try:
            self._map.close()
        except BufferError:
            # Views are still out; the mapping ends with them.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _refuse(self, rule: str) -> InvalidInput:
        return InvalidInput(f"file {self.path}: {rule}")

    def _parse(self, header: bytes) -> None:
        try:
            value = strictjson.loads(header, max_octets=MAX_HEADER, max_values=MAX_VALUES)
            if not header.startswith(b"{") or not isinstance(value, dict):
                raise ValueError("it must begin with {")
        except ValueError as error:
            raise self._refuse(f"header is not that of safetensors: {error}") from None
        self.metadata = self._read_metadata(value.pop(METADATA, {}))
        found = sorted(
            ((*self._read_tensor(name, entry), name) for name, entry in value.items()),
            key=lambda item: item[:2],
        )
        end = 0
        for begin, after, _, name in found:
            if begin != end:
                what = "overlaps the one before it" if begin < end else "leaves a hole before it"
                raise self._refuse(f"tensor {name!r} at octet {begin} {what}")
            self._offsets[name] = begin
            end = after
        if end != len(self._data):
            raise self._refuse(f"tensors take {end} octets of data, the file has {len(self._data)}")
        self.tensors = MappingProxyType({name: spec for _, _, spec, name in found})

    def _read_metadata(self, value: object) -> Mapping[str, str]:
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self._refuse(f"{METADATA} must map texts to texts")
        return MappingProxyType(value)

    def _read_tensor(self, name: str, entry: object) -> tuple[int, int, TensorSpec]:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise self._refuse(f"tensor {name!r} must have dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in ELEMENT_OCTETS:
            known = ", ".join(ELEMENT_OCTETS)
            raise self._refuse(f"tensor {name!r} is of unknown dtype {dtype!r}; known are {known}")
        if not (_counts(shape) and _counts(offsets) and len(offsets) == 2):
            raise self._refuse(
                f"tensor {name!r}: shape and data_offsets must be whole numbers >= 0"
            )
        if len(shape) > MAX_DIMENSIONS:
            raise self._refuse(
                f"tensor {name!r} has {len(shape)} dimensions: at most {MAX_DIMENSIONS} are read"
            )
        spec = TensorSpec(dtype, tuple(shape))
        begin, end = offsets
        if end - begin != spec.octets:
            raise self._refuse(
                f"tensor {name!r}: {end - begin} octets from {begin} to {end}, but {dtype} of shape"
                f" {shape} takes {spec.octets}"
            )
        return begin, end, spec


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 63 for one in value
    )


# -------------------------------------------------------------------------------------- a KV cache

_TENSOR: Final = re.compile(r"([kv])\.(0|[1-9][0-9]{0,3})")
TOKENS: Final = "tokens"
#: How token ids may be stored, as struct formats.
_TOKEN_FORMATS: Final = {"I32": "i", "U32": "I", "I64": "q", "U64": "Q"}


class KvCacheFile:
    """A safetensors file of tensors ``k.<layer>`` and ``v.<layer>``, each ``[token, head, dim]``.

    An optional ``tokens`` holds the token ids. Everything is checked on opening: raises
    InvalidInput, naming the tensors that disagree. ``model`` and others come from the metadata.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = TensorFile(path)
        self.metadata = self._file.metadata
        specs = {name: spec for name, spec in self._file.tensors.items() if name != TOKENS}
        self.layers = self._count_layers(specs)
        first = specs["k.0"]
        if len(first.shape) != 3 or 0 in first.shape:
            raise self._refuse(
                f"tensor 'k.0' has shape {[*first.shape]}: it must be [token, head, dim]; give"
                " latent caches (MLA) one head"
            )
        for name, spec in specs.items():
            if spec != first:
                raise self._refuse(
                    f"tensors 'k.0' and {name!r} differ: {first.dtype} {[*first.shape]} and"
                    f" {spec.dtype} {[*spec.shape]}; all layers must be alike"
                )
        found = next((dtype for dtype, code in CODES.items() if code == first.dtype), None)
        if found is None:
            raise self._refuse(f"dtype {first.dtype} is not one of {', '.join(CODES.values())}")
        self.dtype: DType = found
        self.tokens, self.kv_heads, self.head_dim = first.shape
        self._check_metadata()
        self.token_ids = self._read_tokens()

    def layer(self, component: Component, layer: int) -> memoryview:
        """K or V of one layer, octets of ``[token, head, dim]``, not copied."""
        return self._file.view(f"{component.label}.{layer}")

    def descriptor(self, block_tokens: int, model: str | None = None) -> CompatibilityDescriptor:
        """What the file holds, as a descriptor; ``model`` None takes the metadata's.

        Raises InvalidInput when neither names a model.
        """
        name = self.metadata.get("model") if model is None else model
        if name is None:
            raise self._refuse("its metadata names no model: give its name (model)")
        return CompatibilityDescriptor(
            model=name,
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            block_tokens=block_tokens,
        )

    def close(self) -> None:
        """Let go of the file; views stay good."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _refuse(self, rule: str) -> InvalidInput:
        return InvalidInput(f"file {self._file.path}: {rule}")

    def _count_layers(self, specs: Mapping[str, TensorSpec]) -> int:
        layers = -1
        for name in specs:
            parsed = _TENSOR.fullmatch(name)
            if parsed is None:
                raise self._refuse(f"tensor {name!r}: only k.<layer>, v.<layer> and tokens belong")
            layers = max(layers, int(parsed[2]))
        for layer in range(layers + 1):
            for name in (f"k.{layer}", f"v.{layer}"):
                if name not in specs:
                    raise self._refuse(
                        f"tensor {name!r} is missing; layers must run from 0 to last"
                    )
        if layers < 0:
            raise self._refuse("it has no tensor k.0")
        return layers + 1

    def _check_metadata(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "dtype"):
            value = str(getattr(self, name))
            if self.metadata.get(name, value) != value:
                said = self.metadata[name]
                raise self._refuse(f"metadata says {name} {said!r}, its tensors have {value!r}")
        if self.metadata.get("layout", LAYOUT) != LAYOUT:
            raise self._refuse(f"layout {self.metadata['layout']!r}: convert it to {LAYOUT!r}")

    def _read_tokens(self) -> tuple[int, ...] | None:
        spec = self._file.tensors.get(TOKENS)
        if spec is None:
            return None
        if spec.shape != (self.tokens,) or spec.dtype not in _TOKEN_FORMATS:
            raise self._refuse(
                f"tensors 'tokens' and 'k.0' differ: {spec.dtype} {[*spec.shape]} token ids for"
                f" {self.tokens} tokens; integers of 32 or 64 bits are needed"
            )
        form = f"<{self.tokens}{_TOKEN_FORMATS[spec.dtype]}"
        found = struct.unpack(form, self._file.view(TOKENS))
        if not all(0 <= token < 1 << 32 for token in found):
            raise self._refuse("tensor 'tokens' has ids outside 0 to 4294967295")
        return found


# ----------------------------------------------------------------------------------------- writing


class TensorFileWriter:
    """Writes a safetensors file piece by piece, in any order, under a temporary name.

    ``commit`` puts it in place at once and whole; leaving the ``with`` block without it removes
    it. Raises OutputFailed for what the system refuses, InvalidInput for wrong names or sizes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, TensorSpec],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path = Path(path)
        if os.path.exists(path) and not os.path.isfile(path):
            raise OutputFailed(
                f"file {self.path} cannot be written: it is a directory or a device, and would be"
                " replaced; name a regular file, or a new one"
            )
        self._tensors = dict(tensors)
        self._parts: dict[str, dict[int, int]] = {name: {} for name in tensors}
        self._offsets: dict[str, int] = {}
        header = self._header(metadata or {})
        self.octets = len(header) + sum(spec.octets for spec in tensors.values())
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
        self._handle = -1
        try:
            self._handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            self._reserve()
            self._write_at(header, 0)
        except OSError as error:
            self.abort()
            raise self._failed(error) from None

    @classmethod
    def for_kv_cache(
        cls,
        path: str | os.PathLike[str],
        descriptor: CompatibilityDescriptor,
        tokens: int,
        *,
        token_ids: Sequence[int] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Self:
        """A file that ``KvCacheFile`` reads: write each ``k.<layer>`` and ``v.<layer>``."""
        shape = (tokens, descriptor.local_heads, descriptor.head_dim)
        specs = {
            f"{component}.{layer}": TensorSpec(CODES[descriptor.dtype], shape)
            for component in "kv"
            for layer in range(descriptor.layers)
        }
        packed = b"" if token_ids is None else _pack_token_ids(token_ids, tokens)
        if token_ids is not None:
            specs[TOKENS] = TensorSpec("U32", (tokens,))
        known = {
            "model": descriptor.model,
            "layers": str(descriptor.layers),
            "kv_heads": str(descriptor.local_heads),
            "head_dim": str(descriptor.head_dim),
            "dtype": str(descriptor.dtype),
            "layout": descriptor.layout,
        }
        writer = cls(path, specs, known | dict(metadata or {}))
        if token_ids is not None:
            writer.write(TOKENS, packed)
        return writer

    def write(self, name: str, data: BytesLike, offset: int = 0) -> None:
        """Octets of one tensor, from ``offset`` octets on; each octet is written once."""
        spec = self._tensors.get(name)
        if spec is None:
            raise InvalidInput(f"file {self.path}: tensor {name!r} was not declared")
        view = memoryview(data)
        end = offset + view.nbytes
        parts = self._parts[name]
        if not 0 <= offset <= end <= spec.octets or parts.get(offset):
            raise InvalidInput(
                f"file {self.path}: octets {offset} to {end} of tensor {name!r} cannot be written:"
                f" it has {spec.octets}, each to be written once"
            )
        try:
            self._write_at(view, self._offsets[name] + offset)
        except OSError as error:
            self.abort()
            raise self._failed(error) from None
        parts[offset] = view.nbytes

    def commit(self) -> None:
        """Flush and rename; raises InvalidInput, and removes all, when octets are missing."""
        for name, spec in self._tensors.items():
            end = 0
            for offset, length in sorted(self._parts[name].items()):
                end = offset + length if offset == end else -1
            if end != spec.octets:
                self.abort()
                raise InvalidInput(f"file {self.path}: tensor {name!r} was not written whole")
        try:
            os.fsync(self._handle)
            os.replace(self._temporary, self.path)
            self._sync_directory()
        except OSError as error:
            self.abort()
            raise self._failed(error) from None
        os.close(self._handle)
        self._handle = -1

    def abort(self) -> None:
        """Remove what was written; nothing happens after ``commit``."""
        if self._handle < 0:
            return
        os.close(self._handle)
        self._handle = -1
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()

    def _header(self, metadata: Mapping[str, str]) -> bytes:
        if METADATA in self._tensors:
            raise InvalidInput(f"file {self.path}: {METADATA!r} cannot be the name of a tensor")
        entries: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
        at = 0
        # Widest elements first, so that every tensor is aligned without holes.
        for name, spec in sorted(
            self._tensors.items(), key=lambda item: -ELEMENT_OCTETS[item[1].dtype]
        ):
            entries[name] = {
                "dtype": spec.dtype,
                "shape": spec.shape,
                "data_offsets": [at, at + spec.octets],
            }
            self._offsets[name] = at
            at += spec.octets
        try:
            text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"file {self.path}: names and metadata must be Unicode") from None
        text += b" " * (-len(text) % ALIGNMENT)
        header = _LENGTH.pack(len(text)) + text
        self._offsets = {name: offset + len(header) for name, offset in self._offsets.items()}
        return header

    def _reserve(self) -> None:
        """Find out now, not after an hour, that the disk is too small."""
        try:
            os.posix_fallocate(self._handle, 0, self.octets)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(self._handle, self.octets)

    def _write_at(self, data: BytesLike, at: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self._handle, view, at)
            view = view[written:]
            at += written

    def _sync_directory(self) -> None:
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _failed(self, error: OSError) -> OutputFailed:
        return OutputFailed(
            f"file {self.path} cannot be written: {error.strerror or error}; it needs"
            f" {self.octets} octets on that disk"
        )


def _pack_token_ids(token_ids: Sequence[int], tokens: int) -> bytes:
    if len(token_ids) != tokens:
        raise InvalidInput(f"{len(token_ids)} token ids for {tokens} tokens: give one for each")
    try:
        return struct.pack(f"<{tokens}I", *token_ids)
    except struct.error:
        raise InvalidInput("token ids must be integers from 0 to 4294967295") from None
