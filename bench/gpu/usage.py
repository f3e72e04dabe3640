"""How the commands of this folder refuse what their user can mend: one sentence, and status 2."""

import argparse
from typing import Final, NoReturn

EXIT_MENDABLE: Final = 2


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MENDABLE, f"gpu: {message}\n")
