"""The `rose` command and its subcommands, one module or package each."""
