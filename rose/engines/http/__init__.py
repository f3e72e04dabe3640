"""Engines behind HTTP routes: vLLM, SGLang and rose's own. Needs the extra `serve`."""

from rose.engines.http.facts import FEATURES, SGLANG_FEATURES, Dialect, EngineFacts, EngineSpeed
from rose.engines.http.link import Link, checked_url, open_session, within
from rose.engines.http.probe import probe
from rose.engines.http.speed import ASSUMED, measure
from rose.engines.http.worker import SEATS, HttpWorker

__all__ = [
    "ASSUMED",
    "FEATURES",
    "SEATS",
    "SGLANG_FEATURES",
    "Dialect",
    "EngineFacts",
    "EngineSpeed",
    "HttpWorker",
    "Link",
    "checked_url",
    "measure",
    "open_session",
    "probe",
    "within",
]
