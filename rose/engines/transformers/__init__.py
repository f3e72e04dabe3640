"""Two engines of transformers' continuous batching on one device, under rose.

The substitution points and their pitfalls: `docs/architecture.md`.
"""

from rose.engines.transformers.engine import (
    Engine,
    EngineConfig,
    Model,
    Output,
    kv_geometry,
    rollout_engine,
    serving_engine,
    stock_engine,
)
from rose.engines.transformers.guard import check_version
from rose.engines.transformers.models import PRESETS, load_model

__all__ = [
    "PRESETS",
    "Engine",
    "EngineConfig",
    "Model",
    "Output",
    "check_version",
    "kv_geometry",
    "load_model",
    "rollout_engine",
    "serving_engine",
    "stock_engine",
]
