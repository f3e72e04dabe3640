"""Sessions of agents as columns, and distributions that are fitted to them.

Traces are read above this room; what is read comes here as columns.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.scenario.distributions import Distribution, Lognormal, Mixture, Part, Values

Tokens = npt.NDArray[np.int64]

# EM for a few lognormals settles within tens of rounds; the likelihood is flat after.
_ROUNDS: Final = 200
_SIGMA_MIN: Final = 0.05  # a narrower one would be a single repeated value
_DIGITS: Final = 4
_DRAWS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """The turns of all sessions, session by session.

    Args:
        first_turn: (s + 1,) int64: turns `first_turn[i]` to `first_turn[i + 1]` are those of i.
        heard_tokens: (t,) int64, > 0, of each prompt what was new.
        said_tokens: (t,) int64, > 0, of each answer.
        wait_s: (t,) float64, >= 0, from the end of each answer to the next prompt; the last is 0.
    """

    first_turn: Tokens
    heard_tokens: Tokens
    said_tokens: Tokens
    wait_s: Values

    def __post_init__(self) -> None:
        """Refuse columns that do not fit each other.

        Raises:
            InvalidArgument: there is no session, one has no turn, or a column is too short.
        """
        turns = self.heard_tokens.size
        starts = self.first_turn
        if starts.size < 2 or starts[0] != 0 or starts[-1] != turns or (np.diff(starts) < 1).any():
            raise InvalidArgument("sessions: give at least one, each with a turn")
        if self.said_tokens.size != turns or self.wait_s.size != turns:
            raise InvalidArgument("sessions: the columns have different lengths")
        if min(self.heard_tokens.min(), self.said_tokens.min()) < 1:
            raise InvalidArgument("sessions: a turn hears and says at least one token")
        if not (np.isfinite(self.wait_s).all() and self.wait_s.min() >= 0):
            raise InvalidArgument("sessions: waits are seconds, none below 0")

    def later_turns(self) -> npt.NDArray[np.bool_]:
        """Return (t,) whether a turn is not the first of its session."""
        later = np.ones(self.heard_tokens.size, dtype=np.bool_)
        later[self.first_turn[:-1]] = False
        return later


@dataclass(frozen=True, slots=True)
class Fit:
    """A distribution and how far it is from what it was fitted to.

    Args:
        of: the distribution.
        ks: Kolmogorov-Smirnov distance: the largest difference of the cumulative shares.
        count: of the values.
    """

    of: Distribution
    ks: float
    count: int


@dataclass(frozen=True, slots=True)
class SessionFit:
    """What sessions look like, as an environment takes it.

    Args:
        turns: of a session.
        heard: tokens that a later turn hears.
        said: tokens of an answer.
        wait_s: of a wait above 0.
    """

    turns: Fit
    heard: Fit
    said: Fit
    wait_s: Fit


def fit_sessions(sessions: Sessions, *, parts: int = 3, seed: int = 0) -> SessionFit:
    """Fit mixtures of lognormals to what sessions are made of.

    Args:
        sessions: at least ten turns.
        parts: of a mixture, > 0; a heavy tail takes one of its own.
        seed: of the draws that the distance is worked out from.

    Raises:
        InvalidArgument: there is too little to fit.
    """
    random = np.random.default_rng(seed)
    waits_s = sessions.wait_s[sessions.wait_s > 0]
    columns = (
        np.diff(sessions.first_turn),
        sessions.heard_tokens[sessions.later_turns()],
        sessions.said_tokens,
        waits_s,
    )
    turns, heard, said, wait_s = (
        fitted(np.asarray(column, dtype=np.float64), parts=parts, random=random)
        for column in columns
    )
    return SessionFit(turns, heard, said, wait_s)


def fitted(values: Values, *, parts: int, random: np.random.Generator) -> Fit:
    """Fit a mixture of lognormals by expectation and maximisation.

    Args:
        values: (n,) > 0, at least ten; where all are whole, so are the values it is compared by.
        parts: of the mixture, > 0.
        random: for the distance only.

    Raises:
        InvalidArgument: there are too few values, or one that has no logarithm.
    """
    if values.size < 10 or not (np.isfinite(values).all() and values.min() > 0) or parts < 1:
        raise InvalidArgument("a fit takes at least ten values, all above 0, and at least one part")
    weights, means, sigmas = _em(np.log(values), parts)
    order = np.argsort(means)
    digits = [float(f"{one:.{_DIGITS}g}") for one in np.exp(means[order])]
    shares = np.round(weights[order], _DIGITS)
    shares[-1] = 1 - shares[:-1].sum()
    of: Distribution = Mixture(
        tuple(
            Part(round(float(share), _DIGITS), Lognormal(median, round(float(sigma), _DIGITS)))
            for share, median, sigma in zip(shares, digits, sigmas[order], strict=True)
            if round(float(share), _DIGITS) > 0
        )
    )
    drawn = of.draw(random, _DRAWS)
    is_whole = bool((values == np.rint(values)).all())
    return Fit(
        of, ks_distance(values, np.maximum(1, np.rint(drawn)) if is_whole else drawn), values.size
    )


def ks_distance(values: Values, others: Values) -> float:
    """Return the largest difference between the cumulative shares of two sets of values."""
    at = np.unique(np.concatenate((values, others)))
    of_values = np.searchsorted(np.sort(values), at, side="right") / values.size
    of_others = np.searchsorted(np.sort(others), at, side="right") / others.size
    return float(np.abs(of_values - of_others).max())


def _em(logs: Values, parts: int) -> tuple[Values, Values, Values]:
    """Return weights, means and standard deviations of normal parts."""
    means = np.quantile(logs, (np.arange(parts) + 0.5) / parts)
    sigmas = np.full(parts, max(float(logs.std()), _SIGMA_MIN))
    weights = np.full(parts, 1 / parts)
    for _ in range(_ROUNDS):
        density = weights / sigmas * np.exp(-0.5 * ((logs[:, None] - means) / sigmas) ** 2)
        shares = density / np.maximum(density.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        total = np.maximum(shares.sum(axis=0), np.finfo(float).tiny)
        weights = total / total.sum()
        means = (shares * logs[:, None]).sum(axis=0) / total
        variances = (shares * (logs[:, None] - means) ** 2).sum(axis=0) / total
        sigmas = np.maximum(np.sqrt(variances), _SIGMA_MIN)
    return weights, means, sigmas
