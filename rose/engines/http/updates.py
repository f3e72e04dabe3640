"""New weights for engines that do not follow a publisher by themselves."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rose.engines.http.facts import TORN, Dialect
from rose.engines.http.link import BadStatus
from rose.engines.http.worker import HttpWorker
from rose.errors import DeadlineExceeded, Unavailable

_ANSWER_S: Final = 10.0
_UPDATE_S: Final = 600.0
# Time for a version to arrive, interval of the questions whether it has, and time that the engine
# spends on each of them.
_RECEIVE_S: Final = 600.0
_POLL_S: Final = 0.2
_LOOK_S: Final = 0.01
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
    if worker.facts.follows and offer.folder is None:
        return False
    return worker.is_torn or worker.version < offer.version


async def update(worker: HttpWorker, offer: Offer, upstream: Upstream | None) -> None:
    """Make an engine load a version. It has no turns and no grant while its weights change.

    Raises:
        Unavailable: the engine does not take the version, and keeps its own. If it failed while it
            loaded them, nobody knows its weights, and it gets no grant until an update succeeds.
        DeadlineExceeded: the engine did not get the version in time, and keeps its own.
    """
    facts = worker.facts
    if facts.follows:
        body: Any = {"weight_dir": offer.folder, "weight_version": offer.version}
        await worker.link.ask("/update_weights", body, deadline_s=_UPDATE_S)  # Turns go on.
    elif facts.dialect is Dialect.SGLANG:
        if offer.folder is None:
            raise Unavailable("SGLang engines take versions from folders only")
        body = {"model_path": offer.folder, "weight_version": str(offer.version)}
        await _load(worker, offer, {"/update_weights_from_disk": body})
    elif upstream is None or offer.folder is not None:
        raise Unavailable(
            "vLLM takes versions from a publisher, and only if it runs with "
            'VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config \'{"backend": "rose"}\''
        )
    else:
        await _receive(worker, offer, upstream)
        body = {"update_info": {"version": offer.version, "is_exact": True}}
        await _load(worker, offer, {"/update_weights": body, "/finish_weight_update": {}})


async def _receive(worker: HttpWorker, offer: Offer, upstream: Upstream) -> None:
    """Wait until a vLLM has received a version; meanwhile it generates.

    Then its update has begun: vLLM ends an update only after a failure, or when it is told to.

    Raises:
        Unavailable: it does not follow publishers.
        DeadlineExceeded: the version did not arrive within `_RECEIVE_S`.
    """
    link = worker.link
    if not worker.is_following:
        body: Any = {"init_info": {"address": upstream.address, "token": upstream.token}}
        await link.ask("/init_weight_transfer_engine", body, deadline_s=_UPDATE_S)
        worker.is_following = True
    wanted = {"version": offer.version, "timeout_s": _LOOK_S}
    wanted |= {"is_only_waiting": True, "is_exact": True}
    for _ in range(int(_RECEIVE_S / _POLL_S)):
        try:
            await link.ask("/start_weight_update", {}, deadline_s=_ANSWER_S)
        except BadStatus:  # Another client has left an update open.
            await link.ask("/finish_weight_update", {}, deadline_s=_ANSWER_S)
            await link.ask("/start_weight_update", {}, deadline_s=_ANSWER_S)
        try:
            await link.ask("/update_weights", {"update_info": wanted}, deadline_s=_UPDATE_S)
        except BadStatus as error:
            reason = str(error)
            await asyncio.sleep(_POLL_S)
        else:
            return
    raise DeadlineExceeded(
        f"version {offer.version} did not arrive within {_RECEIVE_S} s ({reason})"
    )


async def _load(worker: HttpWorker, offer: Offer, steps: dict[str, Any]) -> None:
    """Take all turns from an engine, load a version by its routes, and grant again."""
    worker.hold()
    is_changing = worker.is_torn
    try:
        await _label(worker, TORN)
        for path, body in steps.items():
            is_changing |= path == "/update_weights"  # SGLang restores its weights after a failure.
            await worker.link.ask(path, body, deadline_s=_UPDATE_S)
        await _empty_cache(worker)
        await _label(worker, str(offer.version))
    except BadStatus:
        worker.is_torn = is_changing
        if not is_changing:
            await _label(worker, str(worker.version))
            worker.release()
        raise
    except (Unavailable, DeadlineExceeded) as error:
        worker.lose(f"an update of its weights broke off: {error}")
        raise
    worker.commit(offer.version)
    worker.release()


async def _label(worker: HttpWorker, label: str) -> None:
    """Name the engine's weights, if the engine has names for them."""
    try:
        await worker.link.ask(
            "/update_weight_version", {"new_version": label}, deadline_s=_ANSWER_S
        )
    except BadStatus as error:
        if error.status not in (404, 405):
            raise


async def _empty_cache(worker: HttpWorker) -> None:
    """Drop the prefixes that the old weights computed. SGLang does so by itself.

    Raises:
        Unavailable: the engine keeps them.
    """
    if worker.facts.dialect is Dialect.SGLANG:
        return
    path = "/reset_prefix_cache?reset_running_requests=true"
    for _ in range(_RESET_TRIES):
        answer = await worker.link.ask(path, {}, deadline_s=_ANSWER_S)
        if not answer or msgspec.json.decode(answer).get("success", True):
            return
        await asyncio.sleep(_RESET_S)
    raise Unavailable("its prefix cache could not be emptied")
