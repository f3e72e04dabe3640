"""Which movers there are, whether they are installed, and where they may be used."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from rose.addresses import loopback
from rose.errors import InvalidArgument

TCP: Final = "tcp"
MOONCAKE: Final = "mooncake"
NIXL: Final = "nixl"
MOVERS: Final = (MOONCAKE, NIXL)
# How a receiver may get chunks. Over TCP is what every server can do.
PLANES: Final = (TCP, *MOVERS)

# What is imported; of several the first that is there. A wheel of NIXL is for one version of CUDA,
# which it does not need for memory of the host.
_MODULES: Final = {MOONCAKE: ("mooncake",), NIXL: ("nixl_cu13", "nixl_cu12")}


def module_of(mover: str) -> str:
    """Return the name of a mover's module, which is not imported here.

    Raises:
        InvalidArgument: there is no such mover, or it is not installed.
    """
    if mover not in _MODULES:
        raise InvalidArgument(f"mover '{mover}': choose of {', '.join(MOVERS)}")
    for name in _MODULES[mover]:
        if find_spec(name) is not None:
            return name
    raise InvalidArgument(f"{mover} is not installed: pip install 'rose-rl[{mover}]'")


def check_place(mover: str, address: str) -> None:
    """Refuse an address that other machines can reach: a mover's wire is in the clear.

    Certificates change nothing about that, for they are on the connections of rose only.

    Raises:
        InvalidArgument: it is such an address, or none.
    """
    try:
        loopback(address)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"address '{address}': {mover} neither encrypts nor asks who reads, so it is for this "
            "machine's loopback, as in 127.0.0.1:0"
        ) from error


def check_offered(movers: Sequence[str], address: str) -> None:
    """Refuse movers that could not be offered at an address.

    Raises:
        InvalidArgument: the sentence says which, and why.
    """
    for mover in movers:
        check_place(mover, address)
        module_of(mover)
