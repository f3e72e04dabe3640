"""New weights for engines that do not follow a publisher by themselves."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rose.engines.http.facts import TORN, Dialect
from rose.engines.http.link import Rejected
from rose.engines.http.worker import HttpWorker
from rose.errors import DeadlineExceeded, Unavailable

_ANSWER_S: Final = 10.0
_UPDATE_S: Final = 600.0
_RESET_TRIES: Final = 50
_RESET_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Upstream:
    """The publisher that engines follow.

    Args:
        address: host and port of `rose.publish`, `rose publish` or `rose relay`.
        token: its token.
    """

    address: str
    token: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A version of the weights.

    Args:
        version: its number.
        folder: folder that holds it; None: the publisher has it.
    """

    version: int
    folder: str | None = None


def wants(worker: HttpWorker, offer: Offer) -> bool:
    """Return whether an engine must be told of a version."""
    if worker.facts.dialect is Dialect.ROSE and offer.folder is None:
        return False  # It follows the publisher.
    return worker.is_torn or worker.version < offer.version


async def update(worker: HttpWorker, offer: Offer, upstream: Upstream | None) -> None:
    """Make an engine load a version. Meanwhile the worker has no turns and no grant.

    Raises:
        Unavailable: the engine does not take the version, and keeps its own. If its weights are
            unknown, the worker is lost too.
    """
    match worker.facts.dialect:
        case Dialect.ROSE:
            # Its turns go on, and its events report the version.
            body = {"weight_dir": offer.folder, "weight_version": offer.version}
            await worker.link.ask("/update_weights", body, deadline_s=_UPDATE_S)
        case Dialect.SGLANG if offer.folder is None:
            raise Unavailable("SGLang engines take versions from folders only")
        case Dialect.SGLANG:
            path = "/update_weights_from_disk"
            body = {"model_path": offer.folder, "weight_version": str(offer.version)}
            await _load(worker, offer, [(path, body)])
        case Dialect.VLLM if upstream is None or offer.folder is not None:
            raise Unavailable(
                "vLLM takes versions from a publisher: start it with --weight-transfer-config "
                """'{"backend": "rose"}' and VLLM_SERVER_DEV_MODE=1, and this service with --weights"""
            )
        case Dialect.VLLM:
            await _follow(worker, upstream)
            body = {"update_info": {"version": offer.version}}
            steps = [("/start_weight_update", {}), ("/update_weights", body)]
            await _load(worker, offer, [*steps, ("/finish_weight_update", {})])


async def _follow(worker: HttpWorker, upstream: Upstream) -> None:
    """Make a stock vLLM follow the publisher, once per process."""
    if not worker.is_following:
        body = {"init_info": {"address": upstream.address, "token": upstream.token}}
        await worker.link.ask("/init_weight_transfer_engine", body, deadline_s=_UPDATE_S)
        worker.is_following = True


async def _load(worker: HttpWorker, offer: Offer, steps: list[tuple[str, Any]]) -> None:
    """Take all turns from an engine, load a version there, and grant again."""
    worker.revoke()
    try:
        await _label(worker, TORN)
        for path, body in steps:
            await worker.link.ask(path, body, deadline_s=_UPDATE_S)
        await _empty_cache(worker)
        await _label(worker, str(offer.version))
    except Rejected:
        if not worker.is_torn:
            await _label(worker, str(worker.version))
            worker.restore()
        raise
    except (Unavailable, DeadlineExceeded) as error:
        worker.lose(f"an update of its weights broke off: {error}")
        raise
    worker.commit(offer.version)
    worker.restore()


async def _label(worker: HttpWorker, label: str) -> None:
    """Name the engine's weights, if the engine has names for them."""
    try:
        await worker.link.ask(
            "/update_weight_version", {"new_version": label}, deadline_s=_ANSWER_S
        )
    except Rejected as error:
        if error.status not in (404, 405):
            raise


async def _empty_cache(worker: HttpWorker) -> None:
    """Drop the prefixes that the old weights computed. SGLang does so by itself.

    Raises:
        Unavailable: the engine keeps them.
    """
    if worker.facts.dialect is not Dialect.VLLM:
        return
    path = "/reset_prefix_cache?reset_running_requests=true"
    for _ in range(_RESET_TRIES):
        answer = await worker.link.ask(path, {}, deadline_s=_ANSWER_S)
        if not answer or msgspec.json.decode(answer).get("success", True):
            return
        await asyncio.sleep(_RESET_S)
    raise Unavailable("its prefix cache could not be emptied")
