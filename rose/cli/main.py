"""The `rose` command: loads subcommands on demand, and maps failures to exit statuses.

Status 0 is success, 1 a negative answer of the command, 2 an error that the user can correct, 130
an interrupt, 141 a closed pipe at stdout.
"""

import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, TextIO

import click

from rose import __version__
from rose.errors import InternalError, InvalidArgument, RoseError

_STANDARD_DESCRIPTORS: Final = 3
_EXIT_MENDABLE: Final = 2
_EXIT_INTERRUPTED: Final = 130
_EXIT_CLOSED_PIPE: Final = 141  # as a shell reports SIGPIPE
# Errors without a file name that the user can correct: of a disk, of descriptors, of memory.
_EXHAUSTED: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)

# Name: (location, help line). The help imports no command, so it is quick and works when a package
# of a command is missing.
_COMMANDS: Final = {
    "doctor": ("rose.cli.doctor:doctor", "Report which parts of rose are active here, and why."),
    "engine": (
        "rose.cli.engine:engine",
        "Run one engine of transformers for rollouts, behind the routes of vLLM.",
    ),
    "lending": (
        "rose.cli.lending:lending",
        "Set how much a device may lend: on, off, or a share of its pool.",
    ),
    "publish": (
        "rose.cli.weights.publish:publish",
        "Publish checkpoints as versions of weights; receivers get only the changes.",
    ),
    "receive": (
        "rose.cli.weights.receive:receive",
        "Keep a checkpoint at the newest published version.",
    ),
    "relay": (
        "rose.cli.weights.relay:relay",
        "Fetch versions into a cluster once, for all its receivers.",
    ),
    "serve": (
        "rose.cli.serve:serve",
        "Serve rollouts to RL frameworks, through the APIs of vLLM and OpenAI.",
    ),
    "top": ("rose.cli.top:top", "Show live which tenant has which slab of a device."),
    "vllm": (
        "rose.cli.vllm:vllm",
        "Run a vLLM server that lends its idle memory and compute, or one that borrows them.",
    ),
    "workers": (
        "rose.cli.workers:workers",
        "Add, drain, remove and list the engines behind a rollout service.",
    ),
    "verify": ("rose.cli.verify:verify", "Check again every certificate in a log."),
}
# The entry points by which other packages add commands; each names a table like the one above.
_GROUP: Final = "rose.commands"
# Commands of the package rose-lab.
_LABORATORY: Final = frozenset({"compare", "delta", "demo", "plan", "profile", "sim", "transfer"})
# Import names of optional packages, and the requirement that installs them.
_REQUIREMENTS: Final = {
    **dict.fromkeys(("psutil", "torch", "transformers"), "rose-rl[transformers]"),
    **dict.fromkeys(("grpc", "msgspec"), "rose-rl[wire]"),
    "prometheus_client": "rose-rl[metrics]",
    **dict.fromkeys(
        ("aiohttp", "fastapi", "pydantic", "starlette", "uvicorn", "uvloop", "yaml"),
        "rose-rl[serve]",
    ),
    **dict.fromkeys(("jinja2", "matplotlib", "rose_lab"), "rose-lab"),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return the names in the order of the help."""
        return list(_all_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one subcommand."""
        commands = _COMMANDS if cmd_name in _COMMANDS else _all_commands()
        if cmd_name not in commands:
            if cmd_name in _LABORATORY:
                raise InvalidArgument(
                    f"rose {cmd_name} is part of the laboratory: install rose-lab"
                )
            return None
        module, name = commands[cmd_name][0].split(":")
        command = getattr(import_module(module), name)
        if not isinstance(command, click.Command):
            raise InternalError(f"{module}:{name} is not a command")
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 (click's signature)
        formatter: click.HelpFormatter,
    ) -> None:
        """List the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _all_commands().items()])


def _all_commands() -> Mapping[str, tuple[str, str]]:
    """Return the commands of rose and of every installed package, in the order of their names."""
    commands = dict(_COMMANDS)
    for entry in entry_points(group=_GROUP):
        commands |= entry.load()
    return dict(sorted(commands.items()))


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"show_default": True})
@click.version_option(__version__, prog_name="rose", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Lend idle memory and compute of serving to RL rollouts, and take it back in time."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    A bug in rose keeps its traceback, for bug reports.

    Args:
        arguments: arguments without the program name; None for the arguments of this process.
    """
    _fill_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):  # File names may not be valid text.
        sys.stdout.reconfigure(errors="backslashreplace")
    status = _run(sys.argv[1:] if arguments is None else list(arguments))
    lost = _flush(sys.stdout)
    if lost is not None and status not in {_EXIT_MENDABLE, _EXIT_CLOSED_PIPE}:
        status = _world_failed(lost)
    _flush(sys.stderr)
    return status


def _fill_standard_descriptors() -> None:
    """Open the null device where stdin, stdout or stderr is closed.

    Otherwise a socket would get that number, and libuv aborts when it has to close it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < _STANDARD_DESCRIPTORS:
        pass  # It was the lowest free number, and stays open.
    os.close(number)


def _run(arguments: list[str]) -> int:
    try:
        # Not `cli.main`, which ends with status 1 when stdout is a closed pipe.
        with cli.make_context("rose", arguments) as context:
            status = cli.invoke(context)
    except InternalError:
        raise
    except RoseError as error:
        return _refuse(str(error))
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return _refuse(_usage_sentence(error))
    except (click.Abort, KeyboardInterrupt):
        return _EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _REQUIREMENTS:
            raise
        return _refuse(f"{package} is not installed; install {_REQUIREMENTS[package]}")
    except ImportError as error:
        if not (error.path or "").endswith(".so"):
            raise
        return _refuse(str(error))  # A library of a package could not be loaded.
    except MemoryError:
        return _refuse("this process may not have more memory")
    except OSError as error:
        return _world_failed(error)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich ends the program itself.
            return _EXIT_CLOSED_PIPE
        raise
    return status if isinstance(status, int) else 0


def _world_failed(error: OSError) -> int:
    """Return the status of a failure of the system, after one sentence; raise any other error."""
    if isinstance(error, BrokenPipeError):
        return _EXIT_CLOSED_PIPE
    if error.filename is None and error.errno not in _EXHAUSTED:
        raise error
    place = "" if error.filename is None else f"{error.filename}: "
    return _refuse(f"{place}{error.strerror}")


def _flush(stream: TextIO | None) -> OSError | None:
    """Write what was printed, and return the error. After it, the flush at exit cannot fail."""
    if stream is None:  # It was closed before the program started.
        return None
    try:
        stream.flush()
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        return error
    return None


def _refuse(sentence: str) -> int:
    with suppress(OSError):  # stderr may be full or closed too.
        print(f"rose: {' '.join(sentence.split())}", file=sys.stderr)
    return _EXIT_MENDABLE


def _usage_sentence(error: click.ClickException) -> str:
    sentence = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{sentence}; see '{error.ctx.command_path} --help'."
    return f"{sentence}."


if __name__ == "__main__":
    sys.exit(main())
