"""Links between network namespaces, for tests."""

import pytest

from bench.netns import check_able
from rose.errors import Unavailable


def needs_links() -> None:
    """Skip a test, with the reason, if this machine cannot make links."""
    try:
        check_able()
    except Unavailable as error:
        pytest.skip(str(error))
