"""Signatures of manifests: receivers accept only what the publisher sent."""

import hashlib
import hmac
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import Buffer

from rose.errors import InvalidArgument
from rose.transfer.manifest import TILE_MAC_BYTES, Manifest
from rose.transfer.manifest_bytes import to_bytes


def fingerprint(manifest: Manifest) -> bytes:
    """Return the SHA-256 of the encoded manifest without its MAC; see docs/protocol.md."""
    return hashlib.sha256(to_bytes(manifest, is_signed=False)).digest()


@dataclass(frozen=True, slots=True)
class Signing:
    """Signs manifests, and verifies that the publisher signed them.

    Args:
        key: secret of publishers and receivers, unknown to relays; b"" to sign nothing.
    """

    key: bytes = b""

    def __post_init__(self) -> None:
        """Check the key.

        Raises:
            InvalidArgument: the key is no bytes.
        """
        if not isinstance(self.key, bytes):
            raise InvalidArgument(f"the key of manifests must be bytes, got {self.key!r:.20}")

    def signed(self, manifest: Manifest) -> Manifest:
        """Return the manifest with its MAC; without a key, the manifest unchanged."""
        return replace(manifest, mac=self._mac(manifest)) if self.key else manifest

    def is_signed(self, manifest: Manifest) -> bool:
        """Return True if the publisher signed a manifest; without a key, always return True."""
        return not self.key or hmac.compare_digest(self._mac(manifest), manifest.mac)

    def tile_mac(self, elements: Buffer) -> bytes:
        """Return the MAC of a whole tile; zeros without a key.

        A tile's digest, which the signed manifest states, stops no attacker.
        """
        if not self.key:
            return bytes(TILE_MAC_BYTES)
        # Unlike `hmac.digest` this lets other Python threads run.
        return hmac.new(self.key, elements, hashlib.sha256).digest()

    def is_tile(self, frame: Buffer) -> bool:
        """Return True if a whole tile came from the publisher; without a key, always True."""
        content = memoryview(frame).cast("B")
        elements, mac = content[:-TILE_MAC_BYTES], content[-TILE_MAC_BYTES:]
        return not self.key or hmac.compare_digest(self.tile_mac(elements), mac)

    def _mac(self, manifest: Manifest) -> bytes:
        return hmac.digest(self.key, fingerprint(manifest), hashlib.sha256)


UNSIGNED: Final = Signing()
