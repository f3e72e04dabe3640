"""Guards of rose, removed one at a time: the fault runs must notice each removal."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from rose.transfer.manifest import Chunk
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.scrub import Scrub
from rose.transfer.signing import Signing


def without_digest_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commit, "_is_target", lambda commit: True)


def without_base_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commit, "_wrong_base", lambda commit: None)


def without_sha_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chunk, "is_of", lambda chunk, frame: len(frame) == chunk.nbytes)


def without_mac_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Signing, "is_signed", lambda signing, manifest: True)


def without_undo(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commit, "_is_undone", lambda commit, tile, delta: True)


def without_proof_of_undo(patch: pytest.MonkeyPatch) -> None:
    def is_undone(commit: Any, tile: int, delta: Any) -> bool:
        if delta is not None:
            commit._target.apply(tile, delta, undo=True)
        return True

    patch.setattr(Commit, "_is_undone", is_undone)


def with_shadow_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Contributor, "take_back", lambda contributor, part: True)


def with_half_staged_versions_kept(patch: pytest.MonkeyPatch) -> None:
    """What was pulled of one version is taken for the next one's."""
    pull = Puller.pull

    def kept(one: Any, manifest: Any, subscription: Any) -> Any:
        if one._manifest is not None:
            one._manifest = manifest
        return pull(one, manifest, subscription)

    patch.setattr(Puller, "pull", kept)


def without_scrub(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scrub, "_read", lambda scrub, tile: None)


MUTANTS: Final[Mapping[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "digest check": without_digest_check,
    "base check": without_base_check,
    "SHA check": without_sha_check,
    "MAC check": without_mac_check,
    "undo": without_undo,
    "proof of undo": without_proof_of_undo,
    "shadow moves with the log": with_shadow_ahead_of_the_log,
    "drop of half-staged versions": with_half_staged_versions_kept,
    "scrub": without_scrub,
}
