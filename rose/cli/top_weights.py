"""`rose top ADDRESS`: the figures of a publisher, relay or receiver of weights, as they are now."""

import urllib.request
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group
from rich.table import Table

from rose.errors import Unavailable

_PREFIX: Final = "rose_transfer_"
_ANSWER_S: Final = 5.0


def look(address: str) -> Group:
    """Return a table of the figures, and one of the receivers if there are any.

    Args:
        address: metrics address of the program, as HOST:PORT.

    Raises:
        Unavailable: no program of weights answers there.
    """
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_ANSWER_S) as answer:
            text = answer.read().decode()
        families = list(text_string_to_metric_families(text))
    except (OSError, ValueError) as error:
        raise Unavailable(f"{address} serves no metrics of weights: {error}") from error
    figures, receivers = Table("figure", "value"), Table("receiver", "version")
    for family in families:
        for sample in family.samples:
            value = f"{sample.value:.6g}" if sample.value % 1 else f"{sample.value:.0f}"
            if "receiver" in sample.labels:
                receivers.add_row(sample.labels["receiver"], value)
            elif sample.name.startswith(_PREFIX) and "pause" not in sample.name:
                figures.add_row(sample.name.removeprefix(_PREFIX).removesuffix("_total"), value)
    if not figures.row_count:
        raise Unavailable(f"{address} serves no metrics of weights")
    return Group(figures, receivers) if receivers.row_count else Group(figures)
