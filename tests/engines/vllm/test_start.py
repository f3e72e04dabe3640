"""The start of a vLLM server: rose's defaults, and what is refused before an engine starts.

vLLM's command is a small stand-in here, with a parser, a model and an engine.
"""

import argparse
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rose.engines.vllm import start
from rose.engines.vllm.settings import check_config
from rose.errors import Unavailable

PLAN = {
    "settings": {"attach": "lend.sock"},
    "defaults": {
        "scheduler_cls": "ours.Scheduler",
        "worker_cls": "ours.Worker",
        "distributed_executor_backend": "uni",
        "async_scheduling": False,
        "block_size": 32,
    },
}


def model(**differs: Any) -> SimpleNamespace:
    """A model of which all layers have full attention, but for what differs."""
    usual = {
        "runner_type": "generate",
        "use_mla": False,
        "is_attention_free": False,
        "is_hybrid": False,
        "is_encoder_decoder": False,
        "get_sliding_window": lambda: None,
        "hf_text_config": SimpleNamespace(),
    }
    return SimpleNamespace(**{**usual, **differs})


def config(
    *, tensors: int = 1, data: int = 1, keeps_all: bool = False, **differs: Any
) -> SimpleNamespace:
    usual = {
        "parallel_config": SimpleNamespace(world_size=tensors, data_parallel_size=data),
        "model_config": model(),
        "use_v2_model_runner": False,
        "scheduler_config": SimpleNamespace(
            async_scheduling=False, disable_hybrid_kv_cache_manager=keeps_all
        ),
        "speculative_config": None,
        "kv_transfer_config": None,
        "device_config": SimpleNamespace(device_type="cpu"),
    }
    return SimpleNamespace(**{**usual, **differs})


def windowed(*kinds: str) -> SimpleNamespace:
    text = SimpleNamespace(layer_types=kinds) if kinds else SimpleNamespace()
    return model(get_sliding_window=lambda: 128, hf_text_config=text)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (config(tensors=2), "sizes must be 1, got 2 and 1"),
        (config(data=3), "sizes must be 1, got 1 and 3"),
        (config(model_config=model(use_mla=True)), r"got latent attention \(MLA\)"),
        (config(model_config=model(is_hybrid=True)), r"got layers without attention"),
        (config(model_config=model(is_attention_free=True)), "got no attention"),
        (config(model_config=model(is_encoder_decoder=True)), "got an encoder and a decoder"),
        (config(model_config=model(runner_type="pooling")), "got a model that is run for pooling"),
        (config(model_config=windowed()), "got sliding-window attention"),
        (
            config(model_config=windowed("sliding_attention", "full_attention")),
            "got full_attention, sliding_attention",
        ),
        (config(model_config=windowed("sliding_attention"), keeps_all=True), "sliding_attention"),
        (
            config(
                model_config=model(hf_text_config=SimpleNamespace(layer_types=["linear_attention"]))
            ),
            "got linear_attention",
        ),
        (config(use_v2_model_runner=True), "set VLLM_USE_V2_MODEL_RUNNER=0"),
        (config(speculative_config=object()), "remove --speculative-config"),
        (config(kv_transfer_config=object()), "remove --kv-transfer-config"),
        (
            config(device_config=SimpleNamespace(device_type="cuda")),
            "on CPUs only, got the device cuda",
        ),
    ],
)
def test_an_unsupported_model_or_option_is_one_sentence(found: Any, why: str) -> None:
    with pytest.raises(Unavailable, match=why) as caught:
        check_config(found)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "found",
    [
        config(),
        config(model_config=windowed("full_attention", "full_attention")),
        config(model_config=windowed("sliding_attention", "full_attention"), keeps_all=True),
        config(
            model_config=model(
                hf_text_config=SimpleNamespace(layer_types=["sliding_attention", "full_attention"])
            )
        ),
    ],
)
def test_a_model_whose_kv_is_all_kept_is_supported(found: Any) -> None:
    check_config(found)


class Command:
    """Stands in for vLLM: its command parses options, makes a config, and starts an engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: argparse.Namespace | None = None
        self.refusal: Exception | None = None

        class EngineArgs:
            @classmethod
            def from_cli_args(cls, args: argparse.Namespace) -> Any:
                if args.model == "no/model":
                    raise OSError("no/model is not a folder")
                return cls()

            def create_engine_config(_args) -> Any:  # noqa: N805 (self is the command)
                if self.refusal is not None:
                    raise self.refusal
                args = self.args
                found = config(tensors=args.tensor_parallel_size)
                found.scheduler_config.async_scheduling = args.async_scheduling
                return found

        class ServeSubcommand:
            def subparser_init(self, subparsers: Any) -> Any:
                parser = subparsers.add_parser("serve")
                parser.add_argument("model")
                for name in ("--scheduler-cls", "--worker-cls", "--distributed-executor-backend"):
                    parser.add_argument(name)
                parser.add_argument("--block-size", type=int)
                parser.add_argument("--additional-config", type=json.loads)
                parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
                parser.add_argument(
                    "--async-scheduling", action=argparse.BooleanOptionalAction, default=None
                )
                return parser

            def validate(self, args: argparse.Namespace) -> None: ...

        def main() -> None:
            parser = argparse.ArgumentParser()
            command = ServeSubcommand()
            command.subparser_init(parser.add_subparsers())
            self.args = parser.parse_args()
            command.validate(self.args)
            EngineArgs.from_cli_args(self.args).create_engine_config()
            self.started = self.args

        parts: dict[str, dict[str, Any]] = {
            "vllm": {},
            "vllm.engine": {},
            "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
            "vllm.entrypoints": {},
            "vllm.entrypoints.cli": {},
            "vllm.entrypoints.cli.main": {"main": main},
            "vllm.entrypoints.cli.serve": {"ServeSubcommand": ServeSubcommand},
            "rose.engines.vllm.guard": {"check_version": lambda: None},
        }
        for name, attributes in parts.items():
            module = ModuleType(name)
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, name, module)
        cli = sys.modules["vllm.entrypoints.cli"]
        cli.main = sys.modules["vllm.entrypoints.cli.main"]  # type: ignore[attr-defined]
        self._monkeypatch = monkeypatch

    def run(self, *options: str, model: str = "some/model") -> int:
        arguments = ["vllm", json.dumps(PLAN), "serve", model, *options]
        self._monkeypatch.setattr(sys, "argv", arguments)
        return start.main()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(monkeypatch)


def test_roses_defaults_give_way_to_the_users_options(command: Command) -> None:
    assert command.run() == 0
    assert command.started is not None
    assert (command.started.block_size, command.started.async_scheduling) == (32, False)
    assert command.started.scheduler_cls == "ours.Scheduler"
    assert command.run("--block-size", "64") == 0
    assert command.started.block_size == 64


def test_a_users_additional_config_stays(command: Command) -> None:
    assert command.run("--additional-config", '{"mine": {"a": 1}}') == 0
    assert command.started is not None
    assert command.started.additional_config == {"mine": {"a": 1}, "rose": PLAN["settings"]}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["-tp", "2"], "sizes must be 1, got 2 and 1"),
        (["--tensor-parallel-size=2"], "sizes must be 1, got 2 and 1"),
        (["--async-scheduling"], "remove --async-scheduling"),
        (["--scheduler-cls", "mine.Scheduler"], "rose sets --scheduler-cls itself: remove it"),
        (["--additional-config", "[1]"], "--additional-config must be a JSON object, got [1]"),
    ],
)
def test_unsupported_config_is_refused_before_the_engine_starts(
    command: Command, capsys: pytest.CaptureFixture[str], options: list[str], why: str
) -> None:
    assert command.run(*options) == 2
    assert command.started is None
    said = capsys.readouterr().err
    assert said.startswith("rose: ")
    assert why in said
    assert said.count("\n") == 1


def test_a_model_that_is_not_there_is_one_sentence(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(model="no/model") == 2
    assert capsys.readouterr().err.endswith("or an option: no/model is not a folder\n")


def test_rejection_by_vllm_is_one_sentence(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command.refusal = ValueError("the model is\n  unknown")
    assert command.run() == 2
    assert command.started is None
    said = capsys.readouterr().err
    assert said == "rose: vLLM rejects the model or an option: the model is unknown\n"
