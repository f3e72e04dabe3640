"""Two engines of transformers' continuous batching on one device, under rose.

`docs/engines.md` lists what is overridden in transformers, and why.
"""

from rose.engines.transformers.commits import Committed
from rose.engines.transformers.engine import (
    Engine,
    EngineConfig,
    Model,
    kv_geometry,
    rollout_engine,
    serving_engine,
    stock_engine,
)
from rose.engines.transformers.facts import ModelFacts
from rose.engines.transformers.guard import check_version
from rose.engines.transformers.live_weights import LiveWeights
from rose.engines.transformers.models import PRESETS, load_model
from rose.engines.transformers.outputs import Output
from rose.engines.transformers.sampling import Sampling
from rose.engines.transformers.worker import EngineWorker

__all__ = [
    "PRESETS",
    "Committed",
    "Engine",
    "EngineConfig",
    "EngineWorker",
    "LiveWeights",
    "Model",
    "ModelFacts",
    "Output",
    "Sampling",
    "check_version",
    "kv_geometry",
    "load_model",
    "rollout_engine",
    "serving_engine",
    "stock_engine",
]
