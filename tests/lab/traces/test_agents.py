import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose_lab.traces import tool_waits


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_built_in_waits_ascend_and_bound_their_distribution(n):
    waits_s = tool_waits(n)
    assert waits_s.shape == (n,)
    assert (np.diff(waits_s) >= 0).all()
    assert waits_s.min() >= 1.0
    # Half of the waits are below the median of the distribution, half above it.
    assert abs((waits_s < 10.0).sum() - (waits_s > 10.0).sum()) <= 1


def test_one_built_in_wait_is_the_median_and_finer_parts_keep_the_middles_of_coarse_ones():
    assert tool_waits(1) == pytest.approx([10.0])
    assert tool_waits(15)[1::3] == pytest.approx(tool_waits(5))


def test_number_of_built_in_waits_is_checked():
    for n in (0, -1, 10_000_000):
        with pytest.raises(InvalidArgument, match="n_quantiles is"):
            tool_waits(n)
