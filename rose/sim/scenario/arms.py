"""The arms that a scenario compares: rose, and what else could be done with the same GPUs."""

from enum import Enum


class Arm(Enum):
    """One way to run a scenario."""

    ROSE = "rose"
    FIXED = "resource-fixed"
    LEAST_LOADED = "least-loaded-sticky"
    ELASTIC = "elastic"
    RESERVED = "reserved-share"
    PUBLISHED = "rose-published"
    MLFQ = "mlfq"
    TRAINING_GPUS = "training-gpus"
    SHARE_ALL = "share-all"
