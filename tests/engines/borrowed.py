"""A borrower that is a worker, beside serving."""

from rose.engines.transformers import EngineWorker, LiveWeights, Model
from rose.scheduler.worker import WorkerKind
from tests.engines.pair import Pair
from tests.engines.policies import TileCommit, later
from tests.engines.recorder import Recorder
from tests.engines.thin import thin_policy

SMALL_TILE = 1 << 16
# No machine stands still for as long: after a lease that ran out by itself comes one of another
# epoch, under which the turns of a test are none.
TTL_MS = 600_000.0


class Borrowed:
    """Serving, and a borrower over live weights that is a worker."""

    def __init__(self, serving_model: Model, *, ttl_ms: float = TTL_MS, **settings) -> None:
        self.model = thin_policy(seed=4)
        self.weights = LiveWeights(self.model, tile_elements=SMALL_TILE)
        self.pair = Pair((serving_model, self.model), is_sampling=True, **settings)
        self.received = Recorder()
        self.worker = EngineWorker(
            self.pair.rollout, 2, WorkerKind.BORROWED, self.received, flush_ms=0.0, ttl_ms=ttl_ms
        )

    @property
    def processor(self):
        return self.pair.rollout.processor

    @property
    def lane(self):
        return self.pair.rollout_lane

    @property
    def held(self) -> int:
        return self.pair.device.arbiter.snapshot().partitions[1].held

    @property
    def epoch(self) -> int:
        return self.received.leases[-1].grant_epoch

    def grant(self) -> int:
        """Grant, and return the epoch of the new lease."""
        epoch = self.received.leases[-1].grant_epoch if self.received.leases else 0
        self.worker.grant()
        return self.received.wait_lease(
            lambda lease: lease.grant_epoch > epoch and lease.kv_tokens > 0
        ).grant_epoch

    def take(self, slabs: int) -> None:
        """Serving takes slabs back, as under pressure."""
        self.pair.device.lender.take_back(slabs)

    def commit(self, version: int, **settings) -> TileCommit:
        commit = TileCommit(self.weights, later(self.weights.row, seed=version), **settings)
        self.worker.commit(commit, version)
        return commit
