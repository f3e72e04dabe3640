"""The file of a fleet: what it says is checked whole, and its commands say what it says."""

import sys
from pathlib import Path

import pytest

from rose.errors import InvalidArgument
from rose.node.commands import commands_of
from rose.node.fleet_file import read_fleet

ONE = "engines: [{name: a, model: micro-policy}]"
URL = "engines: [{url: http://h:1}]"


def read(folder: Path, text: str):
    path = folder / "fleet.yaml"
    path.write_text(text)
    return read_fleet(path)


WHOLE = """
service:
  listen: 10.0.0.1:9000
  tls: {certificate: c.pem, key: k.pem, ca: ca.pem}
  token_file: token
  tokenizer: model
  model: m
  weights: {address: "127.0.0.1:5", token_file: token}
  sequences: 7
  max_staleness: 2
  logs: here
engines:
  - {name: served, command: vllm-serve, model: ./model, lend: lend.sock, listen: "0.0.0.0:7001",
     args: [--slowdown, "0.1"]}
  - {name: lent, command: vllm-rollout, model: model/, attach: lend.sock, listen: "127.0.0.1:7002"}
  - {name: ours, model: micro-policy, attach: lend.sock, seats: 3, kv_tokens: 512, replicas: 2,
     listen: "127.0.0.1:7003", python: ./python, env: {A: b}, args: [--seed, "4"]}
  - {name: tried, model: trial}
  - {url: "https://elsewhere:8000", token_file: token, ca: ca.pem}
"""


def test_every_field_reaches_the_command(tmp_path: Path) -> None:
    for name in ("c.pem", "k.pem", "ca.pem", "token", "python"):
        (tmp_path / name).touch()
    (tmp_path / "model").mkdir()
    fleet = read(tmp_path, WHOLE)
    service = fleet.file.service
    assert (service.sequences, service.max_staleness) == (7, 2)
    assert fleet.path(service.logs) == tmp_path / "here"
    served, lent, *ours, tried = commands_of(fleet, "secret")
    rose = (sys.executable, "-m", "rose.cli.main")
    socket, model = str(tmp_path / "lend.sock"), str(tmp_path / "model")
    assert served.words == (
        *(*rose, "vllm", "serve", model, "--listen", socket),
        *("--host", "0.0.0.0", "--port", "7001", "--slowdown", "0.1"),
    )
    assert (served.url, served.environment) == (None, {})
    assert lent.words == (
        *(*rose, "vllm", "rollout", model, "--attach", socket),
        *("--host", "127.0.0.1", "--port", "7002"),
    )
    assert (lent.url, lent.environment) == ("http://127.0.0.1:7002", {"VLLM_API_KEY": "secret"})
    for place, one in enumerate(ours):
        assert one.name == f"ours-{place}"
        assert one.words == (
            *(str(tmp_path / "python"), "-m", "rose.cli.main", "engine", "micro-policy"),
            *("--listen", f"127.0.0.1:{7003 + place}", "--attach", socket),
            *("--seats", "3", "--kv-tokens", "512", "--weights", "127.0.0.1:5"),
            *("--weights-token", str(tmp_path / "token"), "--seed", "4"),
        )
        assert one.url == f"http://127.0.0.1:{7003 + place}"
        assert one.environment == {"A": "b", "ROSE_TOKEN": "secret"}
    assert "--weights" not in tried.words  # It has none.
    assert tried.url is not None
    assert not tried.url.endswith(":0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expected `object`, got `null`"),
        ("engines: [", "did not find expected node content"),
        ("engines: []", "length >= 1"),
        (f"{ONE}\nservices: {{}}", "unknown field `services`"),
        (f"{ONE}\nservice: {{port: 1}}", "unknown field `port`"),
        ("engines: [{name: a, model: m, seat: 3}]", "unknown field `seat`"),
        ("engines: [{name: a, model: m, seats: many}]", "Expected `int | null`, got `str`"),
        ("engines: [{name: a, model: m, seats: 0}]", ">= 1"),
        ("engines: [{name: a/b, model: m}]", "matching regex"),
        ("engines: [{name: a, model: m, command: sh}]", "Invalid enum value 'sh'"),
        ("engines: [{model: m}]", "an engine needs a url, or else name"),
        ("engines: [{}]", "an engine needs a url, or else model and name"),
        ("engines: [{url: http://h:1, seats: 3}]", "it has no seats"),
        ("engines: [{name: a, model: m, ca: x}]", "command engine has no ca"),
        ("engines: [{name: a, model: m, lend: s}]", "command engine has no lend"),
        ("engines: [{name: a, model: m, command: vllm-serve}]", "needs lend, a socket"),
        ("engines: [{name: a, model: m, command: vllm-rollout}]", "needs attach, a socket"),
        (
            "engines: [{name: a, model: m, command: vllm-rollout, attach: s, seats: 3}]",
            "command vllm-rollout has no seats",
        ),
        (
            "engines: [{name: a, model: m, command: vllm-serve, lend: s, replicas: 2}]",
            "replicas must be 1",
        ),
        ("engines: [{name: a, model: m}, {name: a, model: m}]", "name 'a' is given to 2 engines"),
        ("engines: [{name: a, model: m, listen: x}]", "engines[0].listen: an address must be"),
        ("engines: [{name: a, model: m, listen: '10.0.0.1:5'}]", "must be on loopback"),
        (f"{URL}\nservice: {{listen: '10.0.0.1:5'}}", "service.listen: without encryption"),
        (
            "engines: [{name: a, model: m, listen: '127.0.0.1:65535', replicas: 2}]",
            "2 ports from 65535 on",
        ),
        (
            "engines: [{name: a, model: m, listen: '127.0.0.1:8000'}]",
            "address 127.0.0.1:8000 is taken twice",
        ),
        (
            "engines: [{name: a, model: m, listen: '127.0.0.1:7'}, "  # noqa: ISC004
            "{name: b, model: m, listen: '127.0.0.1:5', replicas: 3}]",
            "address 127.0.0.1:7 is taken twice",
        ),
        ("engines: [{name: a, model: ./none}]", "engines[0].model: there is no file"),
        ("engines: [{name: a, model: m, python: p}]", "engines[0].python: there is no file"),
        ("engines: [{url: http://h:1, token_file: t}]", "engines[0].token_file: there is no file"),
        (f"{URL}\nservice: {{token_file: t}}", "service.token_file: there is no file"),
        (
            f"{URL}\nservice: {{weights: {{address: '127.0.0.1:5', token_file: t, ca: x}}}}",
            "must be given together",
        ),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_in_a_sentence(tmp_path, text, says) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read(tmp_path, text)
    assert says in str(refusal.value)
    assert str(tmp_path / "fleet.yaml") in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read(tmp_path, "engines: [{name: a, model: ./none, python: p, listen: x}]")
    assert str(refusal.value).count(";") == 2


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot read .*none: No such file"):
        read_fleet(tmp_path / "none")
