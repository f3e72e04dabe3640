"""Lend idle memory and compute of serving GPUs to RL rollouts, and take them back in time."""

from importlib import import_module

TYPE_CHECKING = False  # Type checkers treat it as True; importing `typing` would cost time.
if TYPE_CHECKING:
    from rose.api.attach import Attached, attach
    from rose.api.borrower import Borrower, BorrowerStep, Sequence, borrow
    from rose.api.device import Device, open  # noqa: A004 (it is called rose.open)
    from rose.api.serving import Request, Serving, ServingStep
    from rose.api.weights import publish, receive
    from rose.errors import (
        CorruptData,
        DeadlineExceeded,
        InternalError,
        InvalidArgument,
        OutOfMemory,
        RoseError,
        StepAborted,
        Unavailable,
    )
    from rose.slo import SLO, Policy
    from rose.transfer.attestation import attest
    from rose.transfer.published import WeightPublisher
    from rose.transfer.received import WeightReceiver
    from rose.transfer.sharded.shards import Shards

__version__ = "0.1.0"
__all__ = [
    "SLO",
    "Attached",
    "Borrower",
    "BorrowerStep",
    "CorruptData",
    "DeadlineExceeded",
    "Device",
    "InternalError",
    "InvalidArgument",
    "OutOfMemory",
    "Policy",
    "Request",
    "RoseError",
    "Sequence",
    "Serving",
    "ServingStep",
    "Shards",
    "StepAborted",
    "Unavailable",
    "WeightPublisher",
    "WeightReceiver",
    "attach",
    "attest",
    "borrow",
    "open",
    "publish",
    "receive",
]

# Modules load on first use of their names, because `import rose` runs in every serving process.
_MODULES = {
    "rose.api.attach": ("Attached", "attach"),
    "rose.api.borrower": ("Borrower", "BorrowerStep", "Sequence", "borrow"),
    "rose.api.device": ("Device", "open"),
    "rose.api.serving": ("Request", "Serving", "ServingStep"),
    "rose.api.weights": ("publish", "receive"),
    "rose.errors": (
        "CorruptData",
        "DeadlineExceeded",
        "InternalError",
        "InvalidArgument",
        "OutOfMemory",
        "RoseError",
        "StepAborted",
        "Unavailable",
    ),
    "rose.slo": ("SLO", "Policy"),
    "rose.transfer.attestation": ("attest",),
    "rose.transfer.published": ("WeightPublisher",),
    "rose.transfer.received": ("WeightReceiver",),
    "rose.transfer.sharded.shards": ("Shards",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # Otherwise type checkers would accept any name.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'rose' has no attribute '{name}'")
        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
