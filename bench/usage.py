"""How the commands of this folder refuse what their user can mend: one sentence, and status 2."""

import argparse
from typing import Any, Final, NoReturn

EXIT_MENDABLE: Final = 2


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence.

    Args:
        who: says it.
        options: of `argparse`.
    """

    def __init__(self, who: str, **options: Any) -> None:
        super().__init__(**options)
        self._who = who

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MENDABLE, f"{self._who}: {message}\n")
