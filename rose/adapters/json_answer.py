"""JSON responses."""

from typing import Any

import msgspec
from fastapi.responses import Response


class Json(Response):
    """A JSON response, encoded with msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        return msgspec.json.encode(content)
