"""`weight_transfer=` of TRL's AsyncGRPOTrainer: weights go by `rose.publish`, nothing by NCCL."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

from rose.api.weights import WeightPublisher
from rose.clock import BootClock, Clock
from rose.errors import DeadlineExceeded, Unavailable
from rose.units import NS_PER_S

_POLL_S: Final = 0.02
_ANSWER_S: Final = 60.0


class TrlWeightTransfer:
    """Publishes the trainer's weights while the rollout service is paused.

    It has the methods of TRL 1.16's `WeightTransferProtocol`. Workers follow the publisher, as with
    `rose.receive`, and report what they commit.

    Args:
        url: URL of the rollout service.
        publisher: publisher of `dict(model.named_parameters())`; the caller closes it.
        token: bearer token of the service.
        commit_s: seconds for all workers to commit a version.
        clock: source of times.
    """

    def __init__(
        self,
        url: str,
        publisher: WeightPublisher,
        *,
        token: str | None = None,
        commit_s: float = 300.0,
        clock: Clock | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._publisher = publisher
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._commit_s = commit_s
        self._clock = clock or BootClock()

    def init_weight_transfer(self) -> None:
        """Check that the service answers.

        Raises:
            Unavailable: it does not.
        """
        self._call("GET", "/weight_versions")

    def pause(self) -> None:
        """Return when no worker generates; sequences are kept."""
        self._call("POST", "/pause?mode=keep")

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Publish weights as the next version, and return when every worker has it.

        Args:
            iterator: name and tensor of each parameter.

        Raises:
            InvalidArgument: names, dtypes or shapes differ from those of the publisher.
            DeadlineExceeded: a worker has not committed the version in time.
        """
        version = self._publisher.update({name: tensor.detach() for name, tensor in iterator})
        self._call("POST", "/publish_weight_version", {"version": version})
        end_ns = self._clock.now_ns() + round(self._commit_s * NS_PER_S)
        while behind := self._behind(version):
            if self._clock.now_ns() > end_ns:
                raise DeadlineExceeded(
                    f"workers must commit version {version} within {self._commit_s} s; "
                    f"{behind} have not"
                )
            self._clock.sleep(_POLL_S)

    def resume(self) -> None:
        """Let workers generate again."""
        self._call("POST", "/resume")

    def destroy(self) -> None:
        """Do nothing: there is no group of processes to leave."""

    def _behind(self, version: int) -> int:
        """Return how many workers have older weights."""
        there = self._call("GET", "/weight_versions")["versions"]
        return sum(count for held, count in there.items() if int(held) < version)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=content, headers=self._headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Unavailable(f"{method} {path} was refused: {error.read().decode()}") from error
        except OSError as error:
            raise Unavailable(f"the rollout service at {self._url} does not answer") from error
