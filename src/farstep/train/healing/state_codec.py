"""Nested state as plain data: a skeleton that is JSON, and a list of tensors.

What optimizers, schedulers and users keep in a ``state_dict`` goes through here on its way to another member or
to disk. Nothing is pickled: reading a skeleton builds containers and numbers, and can run no code.
"""

import base64
import binascii
import hashlib
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from farstep.fabric.errors import quoted
from farstep.train.healing.errors import ImageRejected, StateNotPortable

__all__ = ["DTYPES", "as_bytes", "join", "local_tensor", "split", "state_digest", "state_sha256"]

DEPTH_MAX = 64
"""Levels of nesting; far more than any state has, and far less than the interpreter's stack."""
INTEGER_BITS_MAX = 4096
"""Longest integer: random generators keep 128 bits; what is longer is no state."""
VALID = (
    "None, bool, int, float, complex, str, bytes, tensors, numpy arrays and numbers, torch.dtype, "
    "and dict, OrderedDict, Counter, list, tuple of these"
)

_NAMES = """
bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 complex128
float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu
"""
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)
}
"""Element types that travel, by name."""
_NAME_OF_DTYPE = {dtype: name for name, dtype in DTYPES.items()}


def split(state: Any) -> tuple[Any, list[Tensor]]:
    """Separates a nested state into a skeleton and its tensors.

    Tensors are detached, neither copied nor moved; a tensor that occurs several times, as the same view of the same
    memory, is listed once. Numpy arrays become tensors that share their memory. Distributed tensors stay what they are.

    Args:
        state: containers, numbers, text and tensors, see :data:`VALID`. A ``defaultdict`` comes back as dict.

    Returns:
        The skeleton, made of what ``json`` takes, and the tensors it refers to by position.

    Raises:
        StateNotPortable: something else is in there; the message says where.
    """
    splitter = _Splitter()
    return splitter.node(state, "state", 0), splitter.tensors


def join(skeleton: Any, tensors: Sequence[Tensor]) -> Any:
    """Puts a state together again.

    Args:
        skeleton: from :func:`split`, possibly by way of JSON and an untrusted peer.
        tensors: as many as were listed.

    Raises:
        ImageRejected: the skeleton is malformed or refers to a tensor that is not there.
    """
    return _Joiner(tensors).value(skeleton, 0)


def state_digest(state: Any) -> str:
    """Returns 128 bits of XXH3, in hexadecimal, over a nested state: structure, numbers and every tensor's bytes.

    Equal states have equal digests whatever the order of the keys of their dicts. Contiguous tensors in memory are
    read in place.
    """
    skeleton, tensors = split(state)
    hashes = []
    for tensor in map(local_tensor, tensors):
        head = f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
        digest = xxhash.xxh3_128(head)
        digest.update(as_bytes(tensor.cpu()).numpy().data)
        hashes.append(digest.hexdigest())
    return xxhash.xxh3_128_hexdigest(_canonical(skeleton, hashes))


def state_sha256(state: Any) -> str:
    """Returns the SHA-256, in hexadecimal, of a nested state; as :func:`state_digest`, for comparing whole runs."""
    skeleton, tensors = split(state)
    hashes = []
    for tensor in map(local_tensor, tensors):
        digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(as_bytes(tensor.cpu()).numpy().data)
        hashes.append(digest.hexdigest())
    return hashlib.sha256(_canonical(skeleton, hashes)).hexdigest()


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a CPU tensor as a one-dimensional uint8 tensor; shares memory if it is contiguous."""
    plain = tensor.resolve_conj().resolve_neg() if tensor.is_complex() else tensor.resolve_neg()
    dense = plain.contiguous()
    # The stride of a dimension of length 0 or 1 may be anything, and would keep the bytes from being viewed.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor; any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _canonical(node: Any, hashes: list[str]) -> bytes:
    """Text of a skeleton in which pairs are sorted and tensors replaced by their hashes."""
    if isinstance(node, list):
        return b"[" + b",".join(_canonical(item, hashes) for item in node) + b"]"
    if not isinstance(node, dict):
        return f"{type(node).__name__}:{node!r}".encode("utf-8", "surrogatepass")
    tag, body = next(iter(node.items()))
    if tag in ("T", "N", "n"):
        return f"{tag}{hashes[body]}".encode()
    if tag in ("d", "o", "C"):
        pairs = sorted(_canonical(pair, hashes) for pair in body)
        return b"d{" + b",".join(pairs) + b"}"
    return f"{tag}".encode() + _canonical(body, hashes)


# -- taking apart ---------------------------------------------------------------------------------------------------


class _Splitter:
    """One pass over a state. A container or special value becomes a dict with one key, its tag."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._keepers: list[object] = []
        self._index: dict[tuple[object, ...], int] = {}

    def node(self, value: Any, path: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise StateNotPortable(f"{path} is nested more than {DEPTH_MAX} deep, or contains itself")
        if value is None or isinstance(value, bool):
            return value
        make = self._maker_of(value)
        if make is None:
            raise StateNotPortable(f"{path} is a {type(value).__name__}; valid is {VALID}")
        return make(value, path, depth)

    def _maker_of(self, value: Any) -> Callable[[Any, str, int], Any] | None:
        if isinstance(value, Tensor):
            return self._tensor
        if isinstance(value, np.ndarray | np.generic):
            return self._numpy
        if isinstance(value, dict):
            return self._mapping
        if isinstance(value, list | tuple):
            return self._sequence
        if type(value) in (int, float, complex, str, bytes, torch.dtype):
            return _scalar
        return None

    def _mapping(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        pairs = []
        for key, item in value.items():
            if isinstance(key, Tensor | np.ndarray | np.generic | list | dict):
                raise StateNotPortable(
                    f"{path} has a key of type {type(key).__name__}; valid are text, numbers, bytes, None, tuples"
                )
            pairs.append(
                [
                    self.node(key, f"{path}: key {key!r}", depth + 1),
                    self.node(item, f"{path}[{key!r}]", depth + 1),
                ]
            )
        if isinstance(value, Counter):
            return {"C": pairs}
        if not isinstance(value, OrderedDict):
            return {"d": pairs}
        # Modules note the version of their state in an attribute of the dict.
        notes = getattr(value, "_metadata", None)
        return (
            {"o": pairs}
            if notes is None
            else {"o": pairs, "m": self.node(notes, f"{path}._metadata", depth + 1)}
        )

    def _sequence(self, value: Sequence[Any], path: str, depth: int) -> Any:
        tags: dict[type, str] = {list: "l", tuple: "t", torch.Size: "s"}
        if type(value) not in tags:
            raise StateNotPortable(f"{path} is a {type(value).__name__}; valid is {VALID}")
        return {
            tags[type(value)]: [self.node(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        }

    def _tensor(self, value: Tensor, path: str, depth: int) -> Any:
        if value.layout != torch.strided or value.is_quantized or value.dtype not in _NAME_OF_DTYPE:
            raise StateNotPortable(
                f"{path} is a tensor of layout {value.layout} and type {value.dtype}; valid are dense tensors of "
                + ", ".join(DTYPES)
            )
        plain = value.detach()
        if hasattr(plain, "to_local") or plain.numel() == 0 or plain.device.type == "meta":
            key: tuple[object, ...] = ("object", id(value))
        else:
            place = (plain.untyped_storage().data_ptr(), plain.storage_offset(), plain.device)
            bits = (plain.is_conj(), plain.is_neg(), plain.dtype)
            key = ("torch", *place, tuple(plain.shape), plain.stride(), *bits)
        return {"T": self._number(key, plain, value)}

    def _numpy(self, value: Any, path: str, depth: int) -> Any:
        array = np.asarray(value)
        if array.dtype.name not in DTYPES or not array.dtype.isnative:
            raise StateNotPortable(f"{path} is a numpy array of {array.dtype}; valid are {', '.join(DTYPES)}")
        if isinstance(value, np.generic):
            return {"n": self._number(("object", id(array)), torch.from_numpy(array.copy()), array)}
        place = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.name)
        key = ("numpy", *place) if array.size else ("object", id(value))
        usable = array if array.flags.writeable and all(step >= 0 for step in array.strides) else array.copy()
        return {"N": self._number(key, torch.from_numpy(usable), value)}

    def _number(self, key: tuple[object, ...], tensor: Tensor, keeper: object) -> int:
        if key not in self._index:
            self._index[key] = len(self.tensors)
            self.tensors.append(tensor)
            self._keepers.append(
                keeper
            )  # an identity or address is not given to another while this pass lasts
        return self._index[key]


def _scalar(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        raise StateNotPortable(
            f"{path} is an integer of {value.bit_length()} bits; at most {INTEGER_BITS_MAX} are valid"
        )
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": str(value)}
    if isinstance(value, complex):
        return {"c": [_scalar(value.real, path, depth), _scalar(value.imag, path, depth)]}
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype):
        return {"y": str(value).removeprefix("torch.")}
    return value


# -- putting together -------------------------------------------------------------------------------------------------


class _Joiner:
    """Builds the values of a skeleton, trusting nothing in it."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._arrays: dict[int, Any] = {}
        self._makers: dict[str, Callable[[Any, int], Any]] = {
            "d": lambda body, depth: dict(self._pairs(body, depth)),
            "o": lambda body, depth: OrderedDict(self._pairs(body, depth)),
            "C": lambda body, depth: Counter(dict(self._pairs(body, depth))),
            "l": lambda body, depth: list(self._items(body, depth)),
            "t": lambda body, depth: tuple(self._items(body, depth)),
            "s": lambda body, depth: torch.Size(self._items(body, depth)),
            "T": lambda body, depth: self._tensor(body),
            "N": lambda body, depth: self._array(body),
            "n": lambda body, depth: self._array(body)[()],
            "f": lambda body, depth: _not_finite(body),
            "c": lambda body, depth: complex(*(self._float(part, depth) for part in _listed(body, 2))),
            "b": lambda body, depth: base64.b64decode(body, validate=True),
            "y": lambda body, depth: _dtype(body),
        }

    def value(self, node: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ImageRejected(f"the skeleton is nested more than {DEPTH_MAX} deep")
        if isinstance(node, int) and node.bit_length() > INTEGER_BITS_MAX:
            raise ImageRejected(f"the skeleton holds an integer of {node.bit_length()} bits")
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if not isinstance(node, dict) or not 1 <= len(node) <= 2:
            raise ImageRejected(
                f"the skeleton holds a bare {type(node).__name__}; a value with one tag is valid"
            )
        (tag, body), *notes = node.items()
        make = self._makers.get(tag)
        if make is None or (notes and (tag, notes[0][0]) != ("o", "m")):
            raise ImageRejected(f"the skeleton holds the unknown tags {list(node)}")
        try:
            value = make(body, depth + 1)
        except (TypeError, ValueError, OverflowError, binascii.Error) as error:
            raise ImageRejected(
                f"the skeleton holds a malformed value of tag {quoted(tag)}: {error}"
            ) from None
        if notes:
            value._metadata = self.value(notes[0][1], depth + 1)
        return value

    def _items(self, body: Any, depth: int) -> list[Any]:
        return [self.value(node, depth) for node in _listed(body)]

    def _pairs(self, body: Any, depth: int) -> list[tuple[Any, Any]]:
        pairs = []
        for pair in _listed(body):
            key, value = _listed(pair, 2)
            pairs.append((self.value(key, depth), self.value(value, depth)))
        if len({key for key, _ in pairs}) != len(pairs):
            raise ImageRejected("the skeleton holds a dict with the same key twice")
        return pairs

    def _float(self, node: Any, depth: int) -> float:
        value = self.value(node, depth)
        if not isinstance(value, float):
            raise ImageRejected(f"part of a complex number is {quoted(value)}; a float is valid")
        return value

    def _tensor(self, index: Any) -> Tensor:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self._tensors):
            raise ImageRejected(f"the skeleton refers to tensor {quoted(index)} of {len(self._tensors)}")
        return self._tensors[index]

    def _array(self, index: Any) -> Any:
        tensor = self._tensor(index)
        if index not in self._arrays:
            try:
                self._arrays[index] = tensor.numpy()
            except (TypeError, RuntimeError) as error:
                raise ImageRejected(
                    f"tensor {index} of {tensor.dtype} cannot be a numpy array: {error}"
                ) from None
        return self._arrays[index]


def _listed(body: Any, length: int | None = None) -> list[Any]:
    if not isinstance(body, list) or (length is not None and len(body) != length):
        raise ImageRejected("the skeleton holds a container that is no list of the right length")
    return body


def _not_finite(body: Any) -> float:
    if body not in ("nan", "inf", "-inf"):
        raise ImageRejected(f"the skeleton holds the number {quoted(body)}; nan, inf and -inf are valid")
    return float(body)


def _dtype(body: Any) -> torch.dtype:
    if body not in DTYPES:
        raise ImageRejected(
            f"the skeleton holds the element type {quoted(body)}; valid are {', '.join(DTYPES)}"
        )
    return DTYPES[body]
