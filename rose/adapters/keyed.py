"""Requests with a key of the client: a repeated request gets the running or finished answer."""

import asyncio
from collections.abc import Sequence
from hashlib import blake2b

from rose.adapters.generation import RequestInFlight
from rose.adapters.sequences import Ask
from rose.errors import InvalidArgument


class KeyReused(InvalidArgument):
    """A key was sent before with another request."""


def digest_of(asks: Sequence[Ask], prompts: Sequence[bytes]) -> bytes:
    """Return a digest of all that decides the tokens of a request.

    Args:
        asks: the requested sequences.
        prompts: token ids of their prompts, packed.
    """
    digest = blake2b(digest_size=16)
    for ask, prompt in zip(asks, prompts, strict=True):
        of = ask.sampling, ask.seed, ask.versions, ask.stop, ask.include_stop
        digest.update(repr((len(prompt), of)).encode(errors="surrogatepass"))
        digest.update(prompt)
    return digest.digest()


class KeyedRequests:
    """Running and finished requests by key. Finished ones are kept for a time.

    Args:
        tokens_max: largest number of tokens of the finished requests; the oldest is forgotten
            first.
        answer_s: time in seconds for which a finished request is kept.
    """

    def __init__(self, *, tokens_max: int, answer_s: float) -> None:
        self._tokens_max = tokens_max
        self._answer_s = answer_s
        self._by_key: dict[str, tuple[bytes, RequestInFlight]] = {}
        self._keys: dict[RequestInFlight, str] = {}
        self._tokens = 0
        self._finished: dict[
            RequestInFlight, int
        ] = {}  # with the number of their tokens, oldest first

    def __contains__(self, request: RequestInFlight) -> bool:
        """Return whether the request has a key."""
        return request in self._keys

    def find(self, key: str, digest: bytes) -> RequestInFlight | None:
        """Return the request with this key.

        Raises:
            KeyReused: it is another request.
        """
        there = self._by_key.get(key)
        if there is None:
            return None
        if there[0] != digest:
            raise KeyReused(f"the request key {key[:80]!r} was used for another request before")
        return there[1]

    def add(self, key: str, digest: bytes, request: RequestInFlight) -> None:
        """Keep a request that begins under its key."""
        self._by_key[key] = digest, request
        self._keys[request] = key

    def over(self, request: RequestInFlight) -> None:
        """Keep a finished request for a time, so that a client can retry; forget an unfinished one.

        A request that failed or was aborted runs again if it is repeated.
        """
        if request not in self._keys:
            return
        if any(one.error or one.finish_reason == "abort" for one in request.sequences):
            self._forget(request)
            return
        tokens = sum(len(one.ask.prompt) + len(one.tokens) for one in request.sequences)
        self._finished[request] = tokens
        self._tokens += tokens
        while self._tokens > self._tokens_max:
            self._forget(next(iter(self._finished)))
        asyncio.get_running_loop().call_later(self._answer_s, self._forget, request)

    def _forget(self, request: RequestInFlight) -> None:
        """Forget a request. A repeated call does nothing."""
        self._tokens -= self._finished.pop(request, 0)
        key = self._keys.pop(request, None)
        if key is not None:
            del self._by_key[key]
