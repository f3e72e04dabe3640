import ctypes
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from rose.cli import doctor, verify
from rose.cli import main as main_module
from rose.cli.main import main
from rose.errors import CorruptData, InternalError, InvalidArgument
from tests.checkpoints.made import write_safetensors
from tests.fake_driver import Fake, in_child
from tests.reference.log_bytes import LogBytes

ROOT = Path(__file__).resolve().parents[2]


def run(capsys, *arguments):
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def add_command(monkeypatch, function):
    """Make `rose probe` run `function`."""
    command = click.command("probe")(function)
    monkeypatch.setattr(main_module.LazyGroup, "get_command", lambda *_: command)


def raising(error):
    def command():
        raise error

    return command


def test_help_names_every_command(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    for name in ("doctor", "lending", "publish", "verify"):
        assert f"\n  {name} " in out


LABORATORY = ("compare", "delta", "demo", "plan", "profile", "sim", "transfer")


@pytest.mark.parametrize("name", LABORATORY)
def test_a_command_of_the_laboratory_names_its_package_if_that_is_missing(
    capsys, monkeypatch, name
):
    monkeypatch.setattr(main_module, "entry_points", lambda **_: ())
    said = f"rose: rose {name} is part of the laboratory: install rose-lab\n"
    assert run(capsys, name, "--help") == (2, "", said)


def test_help_lists_commands_of_the_laboratory_if_that_is_installed(capsys, monkeypatch):
    assert all(f"\n  {name} " in run(capsys)[1] for name in LABORATORY)
    monkeypatch.setattr(main_module, "entry_points", lambda **_: ())
    assert not any(f"\n  {name} " in run(capsys)[1] for name in LABORATORY)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bogus",), "'bogus'"),
        (("--bogus",), "--bogus"),
        (("verify",), "LOG"),
        (("doctor", "--bogus"), "see 'rose doctor --help'."),
        (("doctor", "extra"), "extra"),
    ],
)
def test_usage_error_is_one_sentence_and_status_2(capsys, arguments, says):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("rose: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_file_that_the_system_refuses_is_one_sentence(capsys, monkeypatch):
    add_command(monkeypatch, raising(PermissionError(13, "Permission denied", "it")))
    assert run(capsys, "probe") == (2, "", "rose: it: Permission denied\n")
    add_command(monkeypatch, raising(OSError(12, "Cannot allocate memory")))
    assert run(capsys, "probe") == (2, "", "rose: Cannot allocate memory\n")
    add_command(monkeypatch, raising(OSError(24, "Too many open files")))
    assert run(capsys, "probe") == (2, "", "rose: Too many open files\n")
    add_command(monkeypatch, raising(OSError(9, "Bad file descriptor")))
    with pytest.raises(OSError, match="Bad file"):
        run(capsys, "probe")


def test_a_library_that_cannot_be_loaded_is_one_sentence(capsys, monkeypatch):
    add_command(monkeypatch, raising(ImportError("libx.so: failed to map", path="y.so")))
    assert run(capsys, "probe") == (2, "", "rose: libx.so: failed to map\n")
    add_command(monkeypatch, raising(ImportError("cannot import name", path="y.py")))
    with pytest.raises(ImportError, match="cannot import name"):
        run(capsys, "probe")


NUMBERS = ("nan", "inf", "-inf", "1e308", "1e23", "1" + "0" * 400)


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "--virtual", "--length-scale"),
        ("compare", "--virtual", "--seconds"),
        ("compare", "--virtual", "--load"),
        ("demo", "--length-scale"),
        ("demo", "--slowdown"),
        ("lending", "limit"),
        ("plan", "Qwen3-8B", "Qwen3-8B", "--device-gb"),
        ("profile", "http://127.0.0.1:1", "--reserve-gib"),
        ("publish", "checkpoint", "--keep-gib"),
    ],
)
def test_a_number_that_is_too_large_or_none_is_refused_at_once(
    capsys, monkeypatch, tmp_path, command
):
    monkeypatch.chdir(tmp_path)
    for number in NUMBERS:
        status, out, err = run(capsys, *command[:-1], *joined(command[-1], number))
        assert (status, out) == (2, ""), number
        assert err.startswith("rose: "), number
        assert err.count("\n") == 1, err


def joined(option: str, value: str) -> tuple[str, ...]:
    return (f"{option}={value}",) if option.startswith("-") else (option, "--", value)


def test_too_little_memory_is_one_sentence(capsys, monkeypatch):
    add_command(monkeypatch, raising(MemoryError()))
    assert run(capsys, "probe") == (2, "", "rose: this process may not have more memory\n")


# Commands that print by click, by rich, and before any command is loaded.
PRINTERS = (("verify", "{}", "--audit"), ("plan", "Qwen3-8B", "Qwen3-8B", "--device-gb", "80"), ())


@pytest.fixture
def printer(request, tmp_path):
    log = LogBytes()
    log.quantum(0, pending=7)  # A certificate does not hold: alone, this ends with status 1.
    path = str(log.save(tmp_path / "log"))
    command = [one.format(path) for one in request.param]
    return [sys.executable, "-m", "rose.cli.main", *command]


@pytest.mark.parametrize("printer", PRINTERS, indirect=True)
def test_a_full_disk_at_stdout_is_one_sentence_and_status_2(printer):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(printer, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "rose: No space left on device\n")


@pytest.mark.parametrize("printer", PRINTERS, indirect=True)
def test_a_closed_pipe_at_stdout_is_status_141_without_a_word(printer):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(printer, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_at_stderr_keeps_the_status():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-m", "rose.cli.main", "bogus"], stderr=full)
    assert done.returncode == 2


@pytest.mark.parametrize("error", [InvalidArgument("load is 7;\n give less"), CorruptData("bad")])
def test_failure_is_one_sentence_and_status_2(capsys, monkeypatch, error):
    add_command(monkeypatch, raising(error))
    sentence = " ".join(str(error).split())
    assert run(capsys, "probe") == (2, "", f"rose: {sentence}\n")


def test_interrupt_is_130(capsys, monkeypatch):
    add_command(monkeypatch, raising(KeyboardInterrupt()))
    assert run(capsys, "probe")[0] == 130


@pytest.mark.parametrize(
    ("name", "requirement"),
    [
        *(("transformers", "rose-rl[transformers]"), ("grpc.aio", "rose-rl[wire]")),
        *(("jinja2", "rose-lab"), ("rose_lab.cli", "rose-lab")),
    ],
)
def test_a_missing_package_is_one_sentence_that_names_its_requirement(
    capsys, monkeypatch, name, requirement
):
    add_command(monkeypatch, raising(ModuleNotFoundError(f"No module named '{name}'", name=name)))
    package = name.partition(".")[0]
    said = f"rose: {package} is not installed; install {requirement}\n"
    assert run(capsys, "probe") == (2, "", said)


@pytest.mark.parametrize(
    "error",
    [
        InternalError("two owners"),
        EOFError("pipe"),
        KeyError("k"),
        ModuleNotFoundError(name="rose"),
    ],
)
def test_bug_keeps_its_traceback(monkeypatch, error):
    add_command(monkeypatch, raising(error))
    with pytest.raises(type(error)):
        main(["probe"])


def test_program_returns_the_status_to_the_shell():
    command = [sys.executable, "-m", "rose.cli.main", "bogus"]
    assert subprocess.run(command, capture_output=True).returncode == 2


# --- doctor ---


def findings():
    return {finding.part: finding for finding in doctor.examine()}


def test_doctor_prints_every_part(capsys):
    status, out, err = run(capsys, "doctor")
    broken = any(finding.state is doctor.State.BROKEN for finding in findings().values())
    assert (status, err) == (int(broken), "")
    for part in ("python", "rose", "C++ core", "cpu", "memory", "torch", "gpu"):
        assert f" {part} " in out


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_doctor_says_why_there_is_no_gpu():
    assert findings()["gpu"].state is doctor.State.ABSENT
    assert "no CUDA driver" in findings()["gpu"].why


def let_pass(words: list[int]) -> None:
    """The gate kernel of a device that lets everything go at once, so that nothing is left."""
    ctypes.c_uint32.from_address(words[2]).value += 1


@in_child()
def test_doctor_tries_the_gates_of_each_gpu(fake: Fake):
    fake.arguments("gate_kernel", [48])
    fake.on_kernel("gate_kernel", let_pass)
    found = findings()
    assert found["cuda driver"].state is doctor.State.ACTIVE
    assert "Fake GPU 0" in found["gpu 0"].why
    assert found["gpu 0 gate"].why.startswith("MEMOP: ")
    assert "wakes in" in found["gpu 0 MEMOP"].why
    assert found["gpu 0 KERNEL"].state is doctor.State.ABSENT
    assert found["gpu 0 use"].state is doctor.State.ABSENT  # The fake driver has no NVML.
    assert fake.faults() == []


@in_child(CUDA_MODULE_LOADING="LAZY")
def test_doctor_says_that_kernels_load_too_late(fake: Fake):
    assert "CUDA_MODULE_LOADING=EAGER" in findings()["gpu 0"].why


@in_child(FAKECUDA_ATTRIBUTES="103=0")
def test_doctor_says_what_a_pool_lacks(fake: Fake):
    fake.arguments("gate_kernel", [48])
    fake.on_kernel("gate_kernel", let_pass)
    found = findings()
    assert "a KV pool needs it" in found["gpu 0 pool"].why


@in_child(FAKECUDA_MISSING="cuStreamBatchMemOp")
def test_doctor_says_why_a_gate_is_not_chosen(fake: Fake):
    fake.fail("cuLaunchKernel", code=719)
    found = findings()
    assert found["gpu 0 gate"].why.startswith("HOST: ")
    assert "cuStreamBatchMemOp" in found["gpu 0 MEMOP"].why


@in_child(CUDA_DEVICE_MAX_CONNECTIONS="1")
def test_doctor_refuses_gates_on_too_few_connections(fake: Fake):
    assert "CUDA_DEVICE_MAX_CONNECTIONS is 1" in findings()["gpu 0 MEMOP"].why


def test_missing_kernel_support_is_broken(capsys, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert findings()["memory"].state is doctor.State.BROKEN
    status, out, _ = run(capsys, "doctor")
    assert status == 1
    assert "Operation not permitted" in " ".join(out.split())


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("5.23.9.dev0", doctor.State.ACTIVE),
        ("5.24.0", doctor.State.ACTIVE),
        ("5.25.0", doctor.State.ABSENT),
    ],
)
def test_packages_are_judged_by_their_version_or_absent_with_the_remedy(
    monkeypatch, version, state
):
    versions, find = {"transformers": version, "packaging": ""}, doctor.find_spec
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    monkeypatch.setattr(metadata, "requires", lambda _: ["transformers<5.25,>=5.23.dev0"])
    monkeypatch.setattr(doctor, "find_spec", lambda name: find(name) if name in versions else None)
    found = findings()
    assert found["transformers"].state is state
    assert version in found["transformers"].why
    assert found["torch"].state is doctor.State.ABSENT
    assert "install rose-rl[transformers]" in found["torch"].why


# --- verify ---


def with_verification(monkeypatch, violations):
    result = SimpleNamespace(
        records=12,
        granted=9,
        violations=violations,
        kinds={"memory": 5, "compute": 7},
        without=(),
        unbounded=0,
        is_complete=True,
    )
    monkeypatch.setattr(verify, "verify_log", lambda *_, **__: result)


def test_violations_are_listed_with_status_1(capsys, monkeypatch):
    sentences = ["Record 3 grants 4 slabs, but [D(T)] allows 2. " + "x" * 200, "Record 5 is late."]
    with_verification(monkeypatch, sentences)
    status, out, _ = run(capsys, "verify", "some.log")
    assert status == 1
    for sentence in sentences:
        assert f"- {sentence}\n" in out
    assert "Every certificate holds" not in out


def test_missing_log_is_status_2(capsys, tmp_path):
    status, out, err = run(capsys, "verify", str(tmp_path / "none.log"))
    assert (status, out) == (2, "")
    assert err.startswith("rose: ")
    assert "none.log" in err


def test_damaged_log_is_no_success(capsys, tmp_path):
    (tmp_path / "bad.log").write_bytes(bytes(range(256)) * 16)
    status, _, err = run(capsys, "verify", str(tmp_path / "bad.log"))
    assert status == 2
    assert "bad.log" in err


READERS = (
    ("verify", "{}"),
    ("compare", "--virtual", "--trace", "{}"),
    ("sim", "{}"),
    ("plan", "{}", "Qwen3-8B", "--device-gb", "80"),
    ("delta", "inspect", "{}", "{}"),
    ("delta", "apply", "{}", "{}"),
    ("transfer", "plan", "{}", "{}"),
    ("transfer", "timeline", "{}", "-o", "{}.out"),
)


# Runs each command for each of the inputs in one process: to start a process takes longest.
LIMITED = """
import json, re, resource, sys
from rose.cli.main import main
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
commands, paths = json.loads(sys.argv[1])
for command in commands:
    for path in paths:
        status = main([one.format(path) for one in command])
        # `ru_maxrss` would count what this test's own process has.
        peak = int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])
        print(f"{command} {path}: status {status}, {peak} KiB", file=sys.stderr)
        if status != 2 or peak >= 700_000:
            sys.exit(1)
"""


def test_an_input_of_another_kind_or_size_is_refused_unread(tmp_path):
    """Nobody writes to the pipe, and the file is larger than the memory that a command may take."""
    paths = [tmp_path / kind for kind in ("pipe", "device", "sparse")]
    os.mkfifo(paths[0])
    paths[1].symlink_to("/dev/zero")
    with paths[2].open("wb") as file:
        file.truncate(2 << 30)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, json.dumps([READERS, list(map(str, paths))])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # One sentence of ours, and one line of the program above, for each.
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(paths) * len(READERS), done.stderr
    assert all(line.startswith("rose: ") for line in lines[::2]), done.stderr


# A name that is too long, one that is no text, a place below a file, one that cannot be a file.
PLACES = (b"n" * 300, b"\xff", b"file/it", b"/", b"")
WRITERS = (
    ("compare", "--virtual", "--trace", "{}", "--out", "{}"),
    ("plan", "{}", "Qwen3-8B", "--device-gb", "80"),
    ("profile", "http://127.0.0.1:1", "--out", "{}"),
    ("sim", "{}", "--out", "{}"),
    ("verify", "{}"),
    ("delta", "inspect", "{}", "{}"),
    ("delta", "make", "old.safetensors", "old.safetensors", "-o", "{}"),
    ("transfer", "timeline", "{}", "-o", "{}"),
    ("publish", "{}"),
    ("top", "--once", "{}"),
)


# As `rose` runs a command, once for each place: what it raises is a traceback, and ends this.
# Before that: planning, and looking at the machine, import no framework.
NAMED = """
import json, os, sys
from rose.cli.main import main
main(["doctor"]), main(["plan", "Qwen3-8B", "Qwen3-8B", "--device-gb", "80"])
assert not {"torch", "transformers", "grpc", "msgspec"} & set(sys.modules)
for command in json.loads(sys.argv[1]):
    for place in map(os.fsdecode, map(bytes.fromhex, sys.argv[2:])):
        status = main([one.replace("{}", place) for one in command])
        if status not in {0, 2}:
            sys.exit(f"status {status} for {command}, {ascii(place)}")
"""


def test_a_name_that_is_none_is_no_traceback(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    write_safetensors(tmp_path / "old.safetensors", {})
    places = [place.hex() for place in PLACES]
    done = subprocess.run(
        [sys.executable, "-c", NAMED, json.dumps(WRITERS), *places],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
