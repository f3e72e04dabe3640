"""What the wheels do by themselves: why a porter is a process and a network of its own."""

import json
import subprocess
import sys

import pytest

from rose.config import porter_environment
from rose.transfer.movers.kinds import module_of
from rose.transfer.movers.nixl import UCX
from rose.transfer.movers.porter import ENVIRONMENTS
from tests.transfer.movers.conftest import check_wheel

pytestmark = pytest.mark.peer

FIRST = """
import ctypes, json, pathlib, sys
from importlib import import_module
from rose.transfer.movers.private_network import make_network
make_network()
secret = ctypes.create_string_buffer(b"nobody registered this", 1 << 12)
kept, got = ctypes.create_string_buffer(1 << 12), ctypes.create_string_buffer(1 << 12)
at, offered, to = (ctypes.addressof(one) for one in (secret, kept, got))
library = import_module(sys.argv[1])
"""
NIXL = """
agents = [library.nixl_agent(name, library.nixl_agent_config(backends=[])) for name in "ab"]
for agent in agents:
    agent.create_backend("UCX", json.loads(sys.argv[2]))
agents[0].register_memory([(offered, 1 << 12, 0, "")], "DRAM")
agents[1].register_memory([(to, 1 << 12, 0, "")], "DRAM")
told = agents[0].get_agent_metadata()
forged = told.replace(offered.to_bytes(8, "little"), at.to_bytes(8, "little"))
peer = agents[1].add_remote_agent(forged)
descs = [agents[1].get_xfer_descs([(one, 1 << 12, 0)], "DRAM") for one in (to, at)]
handle = agents[1].initialize_xfer("READ", *descs, peer)
state = agents[1].transfer(handle)
while state == "PROC":
    state = agents[1].check_xfer_state(handle)
"""
MOONCAKE = """
engines = [library.TransferEngine() for _ in range(2)]
for engine, memory in zip(engines, (offered, to)):
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.register_memory(memory, 1 << 12) == 0
peer = f"127.0.0.1:{engines[0].get_rpc_port()}"
assert engines[1].transfer_sync_read(peer, to, offered, 1 << 12) == 0
state = "DONE" if engines[1].transfer_sync_read(peer, to, at, 1 << 12) == 0 else "refused"
"""
LAST = """
hosts = {
    line.split()[1].rpartition(":")[0]
    for kind in ("tcp", "tcp6")
    for line in pathlib.Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]
    if line.split()[3] == "0A"
}
says = {"state": state, "is_secret": got.value == secret.value, "hosts": sorted(hosts)}
print(json.dumps(says), file=sys.stderr)
"""


def said(mover: str, program: str) -> dict[str, object]:
    check_wheel(mover)
    module = module_of(mover) + (".engine" if mover == "mooncake" else "")
    done = subprocess.run(
        [sys.executable, "-c", FIRST + program + LAST, module, json.dumps(UCX)],
        env=porter_environment(sys.path, ENVIRONMENTS[mover]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith('{"state"')]
    return dict(json.loads(lines[-1]))


def test_nixl_over_tcp_gives_memory_that_nobody_registered(private_networks: None) -> None:
    says = said("nixl", NIXL)
    assert (says["state"], says["is_secret"]) == ("DONE", True)
    assert says["hosts"] == ["0100007F"], "of loopback, since it was told so"


def test_mooncake_refuses_that_but_listens_everywhere(private_networks: None) -> None:
    says = said("mooncake", MOONCAKE)
    assert (says["state"], says["is_secret"]) == ("refused", False)
    assert says["hosts"] == ["00000000", "0" * 32]
