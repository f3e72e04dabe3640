"""vLLM's own command `vllm serve`, with rose's defaults, and rose's refusals before the engine.

`rose vllm` runs `python -m rose.engines.vllm.start PLAN serve MODEL [OPTIONS]`. vLLM parses the
options, whatever their spelling and whether they come from a file, so rose need not.
"""

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rose.engines.vllm.settings import KEY, check_config
from rose.errors import InvalidArgument, RoseError

# Options that rose sets itself.
_TAKEN: Final = ("scheduler_cls", "worker_cls", "distributed_executor_backend")
_EXIT_USAGE: Final = 2


def start(plan: Mapping[str, Any]) -> None:
    """Run vLLM's command on the arguments of this process.

    Args:
        plan: `defaults`, values of options of vLLM that hold unless the user sets them; `settings`,
            rose's settings of the server.

    Raises:
        InvalidArgument: vLLM or rose rejects an option, or vLLM rejects the model.
        Unavailable: rose does not support the installed vLLM, the model or an option.
    """
    # Imported here: a child process of vLLM imports this module again, and vLLM must load late.
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
    from vllm.entrypoints.cli import main as command  # noqa: PLC0415
    from vllm.entrypoints.cli.serve import ServeSubcommand  # noqa: PLC0415

    from rose.engines.vllm.guard import check_version  # noqa: PLC0415

    check_version()
    defaults = plan["defaults"]
    add_options, validate = ServeSubcommand.subparser_init, ServeSubcommand.validate
    read, create = EngineArgs.from_cli_args.__func__, EngineArgs.create_engine_config

    def with_defaults(self: Any, subparsers: Any) -> Any:
        parser = add_options(self, subparsers)
        parser.set_defaults(**defaults)
        return parser

    def validated(self: Any, args: Namespace) -> None:
        take_settings(args, plan)
        with _in_one_sentence():
            validate(self, args)

    def found(cls: type, args: Namespace) -> Any:
        with _in_one_sentence():
            return read(cls, args)

    def checked(self: Any, *parts: Any, **options: Any) -> Any:
        with _in_one_sentence():
            config = create(self, *parts, **options)
        check_config(config)
        return config

    ServeSubcommand.subparser_init = with_defaults
    ServeSubcommand.validate = validated
    EngineArgs.from_cli_args = classmethod(found)
    EngineArgs.create_engine_config = checked
    command.main()


def take_settings(args: Namespace, plan: Mapping[str, Any]) -> None:
    """Add rose's settings to the parsed options of `vllm serve`.

    Raises:
        InvalidArgument: the user sets an option that rose sets itself, or `--additional-config` is
            no JSON object.
    """
    for name in _TAKEN:
        if getattr(args, name) != plan["defaults"][name]:
            raise InvalidArgument(f"rose sets --{name.replace('_', '-')} itself: remove it")
    additional = args.additional_config or {}
    if not isinstance(additional, dict):
        raise InvalidArgument(f"--additional-config must be a JSON object, got {additional!r}")
    args.additional_config = {**additional, KEY: plan["settings"]}


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """Raise what vLLM or its model hub rejects as `InvalidArgument`."""
    try:
        yield
    except (ValueError, TypeError, OSError) as refusal:
        # pydantic puts a frame around the reason.
        errors = getattr(refusal, "errors", None)
        reason = errors()[0]["msg"] if callable(errors) else refusal
        raise InvalidArgument(f"vLLM rejects the model or an option: {reason}") from refusal


@contextmanager
def _folder_for_events(settings: dict[str, Any]) -> Iterator[None]:
    """Make the private folder of a borrower's `RolloutSettings.events`."""
    if "events" not in settings:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="rose-", ignore_cleanup_errors=True) as folder:
        settings["events"] = folder
        yield


def main() -> int:
    """Run `start`, and return 2 after one sentence if a check fails."""
    plan = json.loads(sys.argv.pop(1))
    try:
        with _folder_for_events(plan["settings"]):
            start(plan)
    except RoseError as error:
        sys.stderr.write(f"rose: {' '.join(str(error).split())}\n")
        return _EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
