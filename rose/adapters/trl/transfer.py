"""The weights of a TRL trainer on their way to the workers."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from rose.adapters.trl.client import RolloutClient
from rose.adapters.trl.weights import host_bf16
from rose.clock import BootClock
from rose.errors import DeadlineExceeded, InvalidArgument, RoseError
from rose.transfer.published import WeightPublisher
from rose.units import NS_PER_S

_POLL_S: Final = 0.05


class TrlWeightTransfer:
    """Publishes the trainer's weights, and tells the rollout service their version.

    It has the methods of TRL 1.16's `WeightTransferProtocol`. Workers follow the publisher, as with
    `rose.receive`, and report each version that they commit.

    Args:
        url: URL of the rollout service.
        publisher: publisher of `trl_weights(model)`; the caller closes it. Of several processes of
            a trainer the main process has a publisher, and the others pass None.
        token: bearer token of the service; None: the service needs no token.
        ca: PEM file of the authority that signed the service's certificate; None: those of the
            system.
        wait_s: longest time in seconds that a request waits for the service or for a worker.

    Raises:
        InvalidArgument: the URL is malformed, or `ca` cannot be used.
    """

    def __init__(
        self,
        url: str,
        publisher: WeightPublisher | None,
        *,
        token: str | None = None,
        ca: str | Path | None = None,
        wait_s: float = 300.0,
    ) -> None:
        self.client = RolloutClient(url, token=token, ca=ca, wait_s=wait_s)
        self.publisher = publisher
        self._owner = f"trl-{secrets.token_hex(4)}"
        self._clock = BootClock()

    def publish(self, weights: Mapping[str, Any]) -> int:
        """Publish weights as the next version, report it to the service, and return its number.

        Nothing waits for workers: a request that needs the version waits for one that has it.

        Raises:
            InvalidArgument: names or shapes differ from those of the publisher, or there is none.
            Unavailable: the service did not answer in time.
        """
        if self.publisher is None:
            raise InvalidArgument("the main process of the trainer must have a publisher")
        version = self.publisher.update(weights)
        self.client.call("POST", "/publish_weight_version", {"version": version})
        return version

    # ---- TRL's protocol -------------------------------------------------------------------------

    def init_weight_transfer(self) -> None:
        """Wait until the service answers.

        Raises:
            Unavailable: the service does not answer in time.
        """
        self._versions()

    def pause(self) -> None:
        """Pause the service, and return once no worker generates; `resume` continues sequences.

        The pause ends by itself after `wait_s`, so that a trainer that dies leaves none behind.
        """
        lease_s = round(self.client.wait_s)
        self.client.call("POST", f"/pause?mode=keep&owner={self._owner}&lease_s={lease_s}")

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        """Publish weights as the next version, and return once a worker has committed it.

        Workers that serving keeps from committing it are not waited for. After an error the service
        is not paused any more, because TRL calls `resume` only after success.

        Args:
            iterator: name and tensor of each parameter.

        Raises:
            InvalidArgument: names or shapes differ from those of the publisher, or there is none.
            DeadlineExceeded: no worker has committed the version in time.
            Unavailable: the service did not answer in time.
        """
        with ExitStack() as undo:
            undo.callback(self._end_pause)
            version = self.publish({name: host_bf16(tensor) for name, tensor in iterator})
            self._wait_for_one(version)
            undo.pop_all()

    def resume(self) -> None:
        """Let workers generate again."""
        self._resume()

    def destroy(self) -> None:
        """Do nothing: there is no process group to leave."""

    def _resume(self, wait_s: float | None = None) -> None:
        self.client.call("POST", f"/resume?owner={self._owner}", wait_s=wait_s)

    def _end_pause(self) -> None:
        with suppress(RoseError):  # the caller learns of the error before it
            self._resume(wait_s=0.0)

    def _wait_for_one(self, version: int) -> None:
        began_ns = self._clock.now_ns()
        while True:
            there = self._versions()
            if any(held >= version for held in there):
                return
            waited_s = (self._clock.now_ns() - began_ns) / NS_PER_S
            reason = no_worker(version, there)
            if waited_s > self.client.wait_s:
                raise DeadlineExceeded(f"{reason} within {self.client.wait_s:g} s")
            self.client.report(waited_s, reason, "check that workers receive from the publisher")
            self._clock.sleep(_POLL_S)

    def _versions(self) -> list[int]:
        return list(held_versions(self.client.call("GET", "/weight_versions")))


def held_versions(answer: Any) -> Iterator[int]:
    """Return the versions that workers have, from an answer of `/weight_versions`."""
    return map(int, answer["versions"])


def no_worker(version: int, there: Iterable[int]) -> str:
    """Return the sentence that no worker has a version."""
    held = ", ".join(map(str, sorted(there))) or "none"
    return f"no worker committed version {version} or a later one (versions of workers: {held})"
