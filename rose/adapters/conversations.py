"""Conversations: which requests are turns of one trajectory.

A request continues the conversation of its session. Without a session it continues the conversation
whose last prompt it extends, so a cache is used again by clients that send the whole context each
time. Equal prompts are samples of one task: they begin conversations of their own, in one group.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rose.errors import InvalidArgument

if TYPE_CHECKING:
    import asyncio

_TOKEN_BYTES: Final = 4
# Prompts are indexed by hashes of their blocks. A prompt without a whole block is not linked by its
# tokens: it is cheap to compute again, and short prompts are alike by chance.
BLOCK_TOKENS: Final = 64
_BLOCK_BYTES: Final = BLOCK_TOKENS * _TOKEN_BYTES


def packed(tokens: Sequence[int]) -> bytes:
    """Return token ids as bytes, which compare and hash 20 times faster.

    Raises:
        InvalidArgument: an id does not fit into 4 bytes.
    """
    try:
        return struct.Struct(f"{len(tokens)}I").pack(*tokens)
    except struct.error:
        raise InvalidArgument("token ids must be from 0 to 4294967295") from None


class Prompt:
    """The tokens of a prompt, and a hash of them up to each whole block.

    Raises:
        InvalidArgument: as in `packed`.
    """

    __slots__ = ("blocks", "tokens")

    def __init__(self, tokens: Sequence[int]) -> None:
        data = self.tokens = packed(tokens)
        chain = 0
        self.blocks = [
            # A hash of bytes has a secret of the process, so clients cannot make equal hashes.
            chain := hash((chain, data[at : at + _BLOCK_BYTES]))
            for at in range(0, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES)
        ]

    @property
    def place(self) -> tuple[int, bytes] | None:
        """Hash of the whole blocks, and the tokens after them; None without a whole block."""
        if not self.blocks:
            return None
        return self.blocks[-1], self.tokens[len(self.blocks) * _BLOCK_BYTES :]


class Conversation:
    """A trajectory whose turns are the linked requests.

    Args:
        number: number of the trajectory.
        group: number shared by the trajectories that began with the same prompt.
        job: number of its job.
        session: name that the client gave it; None if its requests are linked by their tokens.
    """

    def __init__(self, number: int, group: int, job: int, session: str | None) -> None:
        self.number = number
        self.group = group
        self.job = job
        self.session = session
        self.turn = 0  # index of the next turn
        self.is_busy = False  # whether a client waits for a turn
        self.prompt = b""  # of the last turn, as is the output
        self.output = b""
        self.place: tuple[int, bytes] | None = None
        self.first: tuple[int, int] = (0, 0)
        self.task: asyncio.Task[None] | None = None  # runs the last turn in the scheduler

    def size(self) -> int:
        """Return the number of tokens of the last turn."""
        return (len(self.prompt) + len(self.output)) // _TOKEN_BYTES

    def common(self, prompt: bytes) -> int:
        """Return the number of common first tokens of a prompt and this conversation."""
        if prompt.startswith(self.prompt):
            return self.continued(prompt)
        return common_tokens(prompt, self.prompt)

    def continued(self, prompt: bytes) -> int:
        """Return as `common`, for a prompt that begins with the whole last prompt."""
        start = len(self.prompt)
        same = common_tokens(prompt[start : start + len(self.output)], self.output)
        return start // _TOKEN_BYTES + same


class Conversations:
    """All conversations that are not over; those without a running turn are idle.

    Each request calls `find`, then `open` if nothing was found, then `begin`. When its turn has
    ended, `rest` makes the conversation idle, or `close` ends it. All calls are cheap: no call
    costs more than the comparison of the prompt with a few others.

    Args:
        count_max: largest number of conversations.
        tokens_max: largest number of tokens of all conversations' last turns.
    """

    def __init__(self, *, count_max: int, tokens_max: int) -> None:
        self._count_max = count_max
        self._tokens_max = tokens_max
        self._all: dict[int, Conversation] = {}
        self._tokens = 0
        self._idle: dict[int, float] = {}  # trajectory → time of its last turn's end, oldest first
        self._sessions: dict[tuple[int, str], list[Conversation]] = {}
        self._groups: dict[tuple[int, int], tuple[int, int]] = {}  # first prompt → group, members
        self._places: dict[tuple[int, bytes], list[Conversation]] = {}
        # Hash of blocks → how many prompts follow them with how many further bytes.
        self._lengths: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        """Return the number of conversations."""
        return len(self._all)

    def __iter__(self) -> Iterator[Conversation]:
        """Iterate over all conversations."""
        return iter(tuple(self._all.values()))

    # ---- the turns of a conversation ------------------------------------------------------------

    def find(self, prompt: Prompt, *, session: str | None, job: int) -> Conversation | None:
        """Return the idle conversation that a request continues; None if it begins a new one."""
        if session is not None:
            named = self._sessions.get((job, session), ())
            idle = [one for one in named if not one.is_busy]
            return max(idle, key=lambda one: one.common(prompt.tokens), default=None)
        best, best_rank = None, (0, False)
        for one in self._extended(prompt):
            if one.job == job:
                rank = one.continued(prompt.tokens), not one.is_busy
                if rank >= best_rank:
                    best, best_rank = one, rank
        # A busy conversation may be the one that this request belongs to, and no other is.
        return None if best is None or best.is_busy else best

    def open(
        self, number: int, prompt: Prompt, *, session: str | None = None, job: int = 0
    ) -> Conversation:
        """Add a conversation; its first prompt decides its group."""
        first = job, hash(prompt.tokens)
        group, members = self._groups.get(first, (number, 0))
        self._groups[first] = group, members + 1
        made = self._all[number] = Conversation(number, group, job, session)
        made.first = first
        if session is not None:
            self._sessions.setdefault((job, session), []).append(made)
        return made

    def begin(self, one: Conversation, prompt: Prompt) -> None:
        """Begin the next turn of a conversation."""
        self._idle.pop(one.number, None)
        self._leave_place(one)
        self._tokens -= one.size()
        one.is_busy, one.prompt, one.output = True, prompt.tokens, b""
        self._tokens += one.size()
        if one.session is None and (place := prompt.place) is not None:
            self._take_place(one, place)

    def rest(self, one: Conversation, output: Sequence[int], *, now_s: float) -> None:
        """Make a conversation idle, after a turn with this output."""
        one.is_busy = False
        one.output = packed(output)
        self._tokens += len(one.output) // _TOKEN_BYTES
        self._idle[one.number] = now_s

    def close(self, one: Conversation) -> bool:
        """Remove a conversation, which is over; return False if it was removed before."""
        if self._all.pop(one.number, None) is None:
            return False
        self._idle.pop(one.number, None)
        self._leave_place(one)
        self._tokens -= one.size()
        group, members = self._groups.pop(one.first)
        if members > 1:
            self._groups[one.first] = group, members - 1
        if one.session is not None:
            named = self._sessions[one.job, one.session]
            named.remove(one)
            if not named:
                del self._sessions[one.job, one.session]
        return True

    def oldest(self, *, job: int) -> Conversation | None:
        """Return the conversation of a job that is idle for longest."""
        return next((one for one in map(self._all.__getitem__, self._idle) if one.job == job), None)

    def surplus(self, *, older_than_s: float) -> list[Conversation]:
        """Return the idle conversations to end, the oldest first.

        Args:
            older_than_s: time; conversations that have been idle since then are too old.
        """
        found: list[Conversation] = []
        count, tokens = len(self._all), self._tokens
        for number, since_s in self._idle.items():
            is_over = count > self._count_max or tokens > self._tokens_max
            if not is_over and since_s > older_than_s:
                break
            found.append(self._all[number])
            count, tokens = count - 1, tokens - found[-1].size()
        return found

    # ---- the index of prompts -------------------------------------------------------------------

    def _extended(self, prompt: Prompt) -> Iterator[Conversation]:
        """Yield the conversations whose last prompts this one extends."""
        end, data = 0, prompt.tokens
        for chain in prompt.blocks:
            end += _BLOCK_BYTES
            for length in self._lengths.get(chain, ()):
                equal = b""  # a prompt that was compared token by token; many share one object
                for one in self._places.get((chain, data[end : end + length]), ()):
                    if one.prompt is not equal:
                        if len(one.prompt) >= len(data) or not data.startswith(one.prompt):
                            continue
                        equal = one.prompt
                    yield one

    def _take_place(self, one: Conversation, place: tuple[int, bytes]) -> None:
        there = self._places.setdefault(place, [])
        if there and there[0].prompt == one.prompt:
            one.prompt = there[0].prompt
        there.append(one)
        one.place = place
        chain, rest = place
        lengths = self._lengths.setdefault(chain, {})
        lengths[len(rest)] = lengths.get(len(rest), 0) + 1

    def _leave_place(self, one: Conversation) -> None:
        if one.place is None:
            return
        there = self._places[one.place]
        there.remove(one)
        if not there:
            del self._places[one.place]
        chain, rest = one.place
        lengths = self._lengths[chain]
        lengths[len(rest)] -= 1
        if not lengths[len(rest)]:
            del lengths[len(rest)]
        if not lengths:
            del self._lengths[chain]
        one.place = None


def common_tokens(one: bytes, other: bytes) -> int:
    """Return the number of first tokens that two packed rows have in common."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high // _TOKEN_BYTES
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low // _TOKEN_BYTES
