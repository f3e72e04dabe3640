"""Functions that may never return, for calls that do not wait for ever."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from rose.errors import RoseError, Unavailable
from rose.thread import Thread, nothing_rests_on_it

T = TypeVar("T")


class Detached:
    """Runs each function in a thread of its own, which nobody joins: it may never end.

    A gRPC call waits for it until it is over, as all are when their server is closed; what the
    function returns later is dropped. Any thread may call. The condition guards the number of
    functions, and is held over none of them.

    Args:
        name: of the threads.
        most: functions that run at a time. One that never returns keeps its place.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._changed = threading.Condition()
        self._running = 0

    def call(self, function: Callable[[str], T], label: str, context: Any) -> T:
        """Return what a function returns for a label.

        Args:
            function: what is called.
            label: its argument.
            context: of the gRPC call that waits for it.

        Raises:
            RoseError: of the function.
            Unavailable: the function raised something else; or the gRPC call is over, or too many
                functions have not returned.
        """
        answer: Future[T] = Future()
        self._begin(label)
        run = partial(self._run, function, label, answer)
        Thread(run, name=self._name, on_failure=nothing_rests_on_it).start()
        context.add_callback(self._look)
        with self._changed:
            self._changed.wait_for(lambda: answer.done() or not context.is_active())
            if not context.is_active():
                raise Unavailable(f"nobody waits for the weights of '{label}' any more")
        return answer.result()

    def _begin(self, label: str) -> None:
        with self._changed:
            if self._running >= self._most:
                raise Unavailable(
                    f"nobody is asked for the weights of '{label}': {self._running} questions "
                    "before it have not been answered"
                )
            self._running += 1

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
