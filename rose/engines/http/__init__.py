"""Engines behind HTTP routes: vLLM, SGLang and rose's own. Needs the extra `serve`."""

from rose.engines.http.facts import Dialect, EngineFacts, Speed
from rose.engines.http.link import Link, checked_url, open_session
from rose.engines.http.probe import probe
from rose.engines.http.speed import ASSUMED, measure
from rose.engines.http.worker import SEATS, HttpWorker

__all__ = [
    "ASSUMED",
    "SEATS",
    "Dialect",
    "EngineFacts",
    "HttpWorker",
    "Link",
    "Speed",
    "checked_url",
    "measure",
    "open_session",
    "probe",
]
