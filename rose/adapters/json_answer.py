"""Answers of routes as JSON."""

from typing import Any

import msgspec
from fastapi.responses import Response


class Json(Response):
    """A JSON answer, encoded once."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the answer."""
        return msgspec.json.encode(content)
