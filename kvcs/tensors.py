"""Tensors of any library as octets, and octets as numpy arrays; numpy itself is optional."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvcs.errors import InvalidInput, KvcsError
from kvcs.identity import DType
from kvcs.names import Component

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcs.geometry import Geometry
    from transport.api import BytesLike

#: Element types that numpy knows only with the ml_dtypes package.
_EXTENDED: Final = frozenset({DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2})
#: Integers stand for the bits of whatever the descriptor says.
_RAW: Final = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32"})


def octets_of(tensor: object, geometry: Geometry, what: str) -> memoryview:
    """The octets of one layer's K or V, not copied; tokens that fill no block are left off.

    ``tensor`` is a C-contiguous ``[token, kv_head, dim]`` array or its octets. Raises InvalidInput
    naming ``what``, the rule and the fix.
    """
    _check_elements(tensor, geometry, what)
    try:
        view = memoryview(tensor)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        view = _reinterpreted(tensor, what)
    if view.format[:1] in (">", "!") and view.itemsize > 1:
        raise InvalidInput(f"{what}: elements are big-endian; convert them to little-endian")
    if not view.c_contiguous:
        raise InvalidInput(f"{what}: not contiguous; make it so, with numpy.ascontiguousarray")
    wanted = geometry.layer_octets(Component.K)
    if not wanted <= view.nbytes < wanted + geometry.block_octets(Component.K):
        raise InvalidInput(
            f"{what}: {view.nbytes} octets, but {geometry.tokens} tokens x {geometry.kv_heads}"
            f" heads x {geometry.head_dim} of {geometry.dtype} take {wanted}"
        )
    return view.cast("B")[:wanted]


def to_numpy(octets: BytesLike, geometry: Geometry) -> NDArray[Any]:
    """A read-only array ``[token, kv_head, dim]`` over ``octets``, not copied.

    Raises KvcsError when numpy, or ml_dtypes for bfloat16 and float8, is not installed.
    """
    name = geometry.dtype.value
    try:
        import numpy as np

        if geometry.dtype in _EXTENDED:
            import ml_dtypes

            dtype = np.dtype(getattr(ml_dtypes, name))
        else:
            dtype = np.dtype(name).newbyteorder("<")
    except ImportError as error:
        raise KvcsError(
            f"arrays of {name} need the package {error.name}: pip install 'kvcs[numpy]', or use"
            " the octets in buffers"
        ) from None
    array = np.frombuffer(octets, dtype).reshape(-1, geometry.kv_heads, geometry.head_dim)
    array.flags.writeable = False
    return array


def _reinterpreted(tensor: object, what: str) -> memoryview:
    """An array whose elements have no name in C, such as bfloat16, lends its octets instead."""
    try:
        return memoryview(tensor.view("uint8"))  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, BufferError) as error:
        raise InvalidInput(
            f"{what}: a {type(tensor).__name__} lends no contiguous octets ({error}); give a"
            " numpy array, or any object with the buffer protocol"
        ) from None


def _check_elements(tensor: object, geometry: Geometry, what: str) -> None:
    """Compare dtype and shape, where the object has them, before counting octets."""
    found = str(getattr(getattr(tensor, "dtype", None), "name", geometry.dtype.value))
    if found in _RAW:
        return
    if found != geometry.dtype.value:
        raise InvalidInput(
            f"{what}: elements are {found}, the descriptor says {geometry.dtype}; convert them"
        )
    shape = getattr(tensor, "shape", ())
    if len(shape) == 3 and tuple(shape[1:]) != (geometry.kv_heads, geometry.head_dim):
        raise InvalidInput(
            f"{what}: shape {[*shape]}, but [token, {geometry.kv_heads}, {geometry.head_dim}] is"
            " published; transpose to token, head, dim"
        )
