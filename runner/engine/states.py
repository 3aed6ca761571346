"""Saved states: our frame around the library's bytes, and a store addressed by what made them.

The library's own format carries no checksum: one flipped byte is accepted as a full success and
moves logits. So nothing reaches it that did not pass this frame.

Frame (little endian)::

    magic "LKVS" | version u16 | header length u32 | header (JSON) | header sha256
    | tokens int32[n_tokens] | payload
    the header holds: fingerprint, n_past, n_tokens, token digest, payload length, payload sha256
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.backend import StateRefused, TokenIds
from runner.errors import EnvironmentProblem

_MAGIC = b"LKVS"
_VERSION = 1
_LEAD = struct.Struct("<4sHI")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class SavedState:
    """A session at rest."""

    fingerprint: str
    """`NativeBackend.fingerprint` of the backend that made it."""
    tokens: TokenIds
    n_past: int
    payload: NDArray[np.uint8]


def token_digest(tokens: TokenIds) -> str:
    """Hex sha256 of the ids as little-endian int32."""
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes()).hexdigest()


def freeze(state: SavedState) -> bytes:
    """The framed bytes of a state."""
    tokens = np.ascontiguousarray(state.tokens, dtype="<i4").tobytes()
    header = json.dumps(
        {
            "fingerprint": state.fingerprint,
            "n_past": state.n_past,
            "n_tokens": len(state.tokens),
            "token_digest": token_digest(state.tokens),
            "payload_bytes": state.payload.size,
            "payload_sha256": hashlib.sha256(state.payload.data).hexdigest(),
        }
    ).encode()
    lead = _LEAD.pack(_MAGIC, _VERSION, len(header))
    seal = hashlib.sha256(lead + header).digest()
    return b"".join((lead, header, seal, tokens, state.payload.tobytes()))


def thaw(blob: bytes, fingerprint: str) -> SavedState:
    """Check a frame and open it.

    Raises:
        StateRefused: which check failed, with both values where there are two.
    """
    header, at = _header(blob)
    if header["fingerprint"] != fingerprint:
        raise StateRefused(
            f"the state was made by {header['fingerprint'][:12]}, this is {fingerprint[:12]}: "
            "another model, library build or KV layout"
        )
    expected = at + 4 * header["n_tokens"] + header["payload_bytes"]
    if len(blob) != expected:
        raise StateRefused(f"the state has {len(blob)} bytes, its header promises {expected}")
    tokens = np.frombuffer(blob, dtype="<i4", count=header["n_tokens"], offset=at).astype(np.int32)
    payload = np.frombuffer(blob, dtype=np.uint8, offset=at + 4 * header["n_tokens"])
    if token_digest(tokens) != header["token_digest"]:
        raise StateRefused("the state's tokens do not match their digest")
    if hashlib.sha256(payload.data).hexdigest() != header["payload_sha256"]:
        raise StateRefused("the state's payload does not match its checksum")
    return SavedState(fingerprint, tokens, header["n_past"], payload)


def _header(blob: bytes) -> tuple[dict[str, Any], int]:
    """The checked header and the offset of what follows it."""
    if len(blob) < _LEAD.size:
        raise StateRefused(f"a state of {len(blob)} bytes is too short to be one")
    magic, version, length = _LEAD.unpack_from(blob)
    if magic != _MAGIC or version != _VERSION:
        raise StateRefused(
            f"not a livekv state of version {_VERSION}: {magic!r}, version {version}"
        )
    end = _LEAD.size + length
    seal = blob[end : end + _DIGEST_BYTES]
    if hashlib.sha256(blob[:end]).digest() != seal:
        raise StateRefused("the state's header is cut short or does not match its checksum")
    header: dict[str, Any] = json.loads(blob[_LEAD.size : end])
    return header, end + _DIGEST_BYTES


class StateStore:
    """A folder of saved states, addressed by a hash of what produced them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, fingerprint: str, tokens: TokenIds) -> Path:
        """Where the state of these tokens on that backend is or would be."""
        key = hashlib.sha256(f"{fingerprint}:{token_digest(tokens)}".encode()).hexdigest()
        return self._folder / key[:2] / f"{key}.lkvs"

    def put(self, fingerprint: str, tokens: TokenIds, blob: bytes) -> Path:
        """Store a framed state, whole or not at all.

        Raises:
            EnvironmentProblem: the disk is full or the folder cannot be written.
        """
        final = self.path(fingerprint, tokens)
        partial = final.with_suffix(f".partial-{os.getpid()}")
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(blob)
            partial.replace(final)
        except OSError as error:
            with suppress(OSError):  # where the folder itself is the trouble there is no part
                partial.unlink()
            raise EnvironmentProblem(
                f"cannot store a state of {len(blob)} bytes in {self._folder}: "
                f"{error.strerror or error}; free space or choose another folder"
            ) from error
        return final

    def get(self, fingerprint: str, tokens: TokenIds) -> bytes | None:
        """The framed bytes, None when there are none. `Session.load_state` checks them."""
        try:
            return self.path(fingerprint, tokens).read_bytes()
        except FileNotFoundError:
            return None
