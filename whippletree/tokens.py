"""Token ids and log-probabilities on the wire and in the store: packed little-endian int32 and float32 arrays."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
"""[T] token ids."""
Floats = npt.NDArray[np.float32]
"""[T] log-probabilities, weights or advantages."""


def pack_ids(ids: Sequence[int] | TokenIds) -> bytes:
    """[T] ids -> 4 T bytes. ValueError where an id does not fit int32."""
    if isinstance(ids, np.ndarray) and ids.dtype == np.int32:
        return ids.astype("<i4", copy=False).tobytes()
    array = np.asarray(ids, dtype=np.int64)
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise ValueError("token id outside int32")
    return array.astype("<i4").tobytes()


def unpack_ids(data: bytes) -> TokenIds:
    """4 T bytes -> [T] ids (read-only view). ValueError where the length is not a multiple of 4."""
    return np.frombuffer(data, dtype="<i4")


def pack_floats(values: Sequence[float] | Floats) -> bytes:
    """[T] values -> 4 T bytes."""
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_floats(data: bytes) -> Floats:
    """4 T bytes -> [T] values (read-only view). ValueError where the length is not a multiple of 4."""
    return np.frombuffer(data, dtype="<f4")
