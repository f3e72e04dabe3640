"""Errors over HTTP: their status, and their body in the format of OpenAI."""

from typing import Any, Final

from rose.adapters.limits import ContextTooLong, Overloaded
from rose.adapters.pauses import PauseOvertaken
from rose.errors import DeadlineExceeded, InternalError, InvalidArgument, RoseError
from rose.scheduler.checks import printable
from rose.scheduler.versions import VersionConflict

RETRY_AFTER_S: Final = 1
CLIENT_GONE: Final = 499  # nobody reads this answer
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    409: "version_conflict",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_HEADERS: Final = {401: {"www-authenticate": "Bearer"}, 405: {"allow": "POST"}}


class Denied(Exception):
    """The refusal of a request, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    match error:
        case Denied():
            return error.status
        case InvalidArgument():
            return 400
        case VersionConflict() | PauseOvertaken():
            return 409
        case Overloaded():
            return 429
        case DeadlineExceeded():
            return 504
        case InternalError():
            return 500
        case RoseError():
            return 503
    return 500


def body_of(error: Exception, there: dict[int, int] | None = None) -> dict[str, Any]:
    """Return the body of an error.

    Args:
        error: the error; the message of one that is neither of rose nor of a route is not shown.
        there: number of workers by version of their weights, for an error about versions.
    """
    is_ours = isinstance(error, RoseError | Denied)
    message = str(error) if is_ours else "the service failed; its log has the reason"
    body = error_body(status_of(error), message, there)
    if isinstance(error, ContextTooLong):
        body["error"]["code"] = error.code
    return body


def error_body(status: int, message: str, there: dict[int, int] | None = None) -> dict[str, Any]:
    """Return the body of an error in the format of OpenAI.

    Args:
        status: HTTP status.
        message: one sentence for the user.
        there: number of workers by version of their weights, if the error is about versions.
    """
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    error: dict[str, Any] = {
        "message": printable(message),
        "type": kind,
        "param": None,
        "code": status,
    }
    if there is not None:
        error["versions"] = {str(version): count for version, count in there.items()}
    return {"error": error}


def headers_of(status: int) -> dict[str, str]:
    """Return the headers that an error needs besides the usual ones."""
    if status in {409, 429, 503}:
        return {"retry-after": str(RETRY_AFTER_S)}
    return _HEADERS.get(status, {})
