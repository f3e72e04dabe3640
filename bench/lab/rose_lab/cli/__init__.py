"""Commands of the laboratory, which `rose` finds by an entry point; a command is one module."""
