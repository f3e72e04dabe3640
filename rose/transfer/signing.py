"""Signatures of manifests: receivers accept only what the publisher sent."""

import hashlib
import hmac
from dataclasses import dataclass, replace
from typing import Final

from rose.transfer.manifest import Manifest
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

    def signed(self, manifest: Manifest) -> Manifest:
        """Return the manifest with its MAC; without a key, the manifest unchanged."""
        return replace(manifest, mac=self._mac(manifest)) if self.key else manifest

    def is_signed(self, manifest: Manifest) -> bool:
        """Return True if the publisher signed a manifest; without a key, always return True."""
        return not self.key or hmac.compare_digest(self._mac(manifest), manifest.mac)

    def _mac(self, manifest: Manifest) -> bytes:
        return hmac.digest(self.key, fingerprint(manifest), hashlib.sha256)


UNSIGNED: Final = Signing()
