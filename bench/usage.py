"""Errors of the commands in this folder that a user can fix: one sentence, and status 2."""

import argparse
from typing import Any, Final, NoReturn

EXIT_MENDABLE: Final = 2


class Parser(argparse.ArgumentParser):
    """Reports an error in one sentence.

    Args:
        who: name of the command.
        options: options of `argparse`.
    """

    def __init__(self, who: str, **options: Any) -> None:
        super().__init__(**options)
        self._who = who

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MENDABLE, f"{self._who}: {message}\n")
