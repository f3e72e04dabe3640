"""Built-in waits of agents for their tools; no file is read.

The waits come from 710 sessions of a coding agent in production (derived from
callanjfox/kv-cache-tester, Apache-2.0). A wait lasts from the end of an answer to the next request,
so the longest waits are for people, not for tools; replays should cut them.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument

_QUANTILES_MAX: Final = 1_000_000

# (share of waits, seconds): quantile function of 47,696 waits above 0, at its bends. The source has
# whole seconds.
_WAIT_QUANTILES: Final = (
    (0.0, 1.0), (0.01, 3.0), (0.05, 4.0), (0.1, 4.0), (0.2, 5.0), (0.3, 6.0), (0.4, 8.0),
    (0.5, 10.0), (0.6, 15.0), (0.65, 18.0), (0.7, 24.0), (0.75, 35.0), (0.8, 55.0), (0.85, 96.0),
    (0.9, 171.0), (0.92, 236.0), (0.94, 341.0), (0.96, 607.0), (0.975, 1101.0), (0.985, 2346.0),
    (0.99, 3043.0), (0.9925, 3256.0), (0.995, 4173.0), (0.9965, 6565.0), (0.9975, 8741.0),
    (0.9985, 15050.0), (0.999, 26749.0), (0.9995, 39529.0), (1.0, 77589.0),
)  # fmt: skip


def tool_waits(n_quantiles: int) -> npt.NDArray[np.float64]:
    """Return built-in waits for tools, without any file.

    Args:
        n_quantiles: number of equally likely parts of the distribution, > 0.

    Returns:
        (n_quantiles,) float64, seconds, ascending: the median of each part. A uniform choice among
        them is a random wait.

    Raises:
        InvalidArgument: `n_quantiles` is out of range.
    """
    if not 0 < n_quantiles <= _QUANTILES_MAX:
        raise InvalidArgument(
            f"n_quantiles is {n_quantiles}, give a whole number from 1 to {_QUANTILES_MAX}"
        )
    shares, waits_s = zip(*_WAIT_QUANTILES, strict=True)
    middles = (np.arange(n_quantiles) + 0.5) / n_quantiles
    return np.exp(np.interp(middles, shares, np.log(waits_s)))
