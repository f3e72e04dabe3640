"""Functions that may never return, for calls that do not wait for ever."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from rose.closing import Closing
from rose.errors import RoseError, Unavailable

T = TypeVar("T")


class Detached(Closing):
    """Runs each function in a thread of its own, which nobody joins: it may never end.

    Whoever called goes on when it hangs up, or when this is closed; what the function returns later
    is dropped. Any thread may call. The condition guards the fields, and is held over no function.

    Args:
        name: of the threads.
        most: functions that run at a time. One that never returns keeps its place.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._changed = threading.Condition()
        self._running = 0
        self._is_closed = False

    def call(self, function: Callable[[str], T], label: str, context: Any) -> T:
        """Return what a function returns for a label.

        Args:
            function: what is called.
            label: its argument.
            context: of the gRPC call that waits for it.

        Raises:
            RoseError: of the function.
            Unavailable: the function raised something else; or the call was given up, this was
                closed, or too many functions have not returned.
        """
        answer: Future[T] = Future()
        self._begin(label)
        arguments = (function, label, answer)
        threading.Thread(target=self._run, args=arguments, name=self._name, daemon=True).start()
        context.add_callback(self._look)
        with self._changed:
            self._changed.wait_for(lambda: answer.done() or not self._is_wanted(context))
            if not self._is_wanted(context):
                raise Unavailable(f"nobody waits for the weights of '{label}' any more")
        return answer.result()

    def close(self) -> None:
        """Let everybody go who waits; whoever calls from now on does not wait."""
        with self._changed:
            self._is_closed = True
        self._look()

    def _begin(self, label: str) -> None:
        with self._changed:
            if self._is_closed:
                raise Unavailable(f"nobody is asked for the weights of '{label}': it is closed")
            if self._running >= self._most:
                raise Unavailable(
                    f"nobody is asked for the weights of '{label}': {self._running} questions "
                    "before it have not been answered"
                )
            self._running += 1

    def _is_wanted(self, context: Any) -> bool:
        return not self._is_closed and context.is_active()

    def _run(self, function: Callable[[str], T], label: str, answer: Future[T]) -> None:
        try:
            answer.set_result(function(label))
        except RoseError as error:
            answer.set_exception(error)
        finally:  # what else it raised is for this process, which shows it
            if not answer.done():
                answer.set_exception(Unavailable(f"asked for '{label}', the rank failed"))
            with self._changed:
                self._running -= 1
            self._look()

    def _look(self) -> None:
        with self._changed:
            self._changed.notify_all()
