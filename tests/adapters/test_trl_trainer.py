"""TRL's GRPOTrainer in one and two processes, through trial workers that follow its weights."""

import asyncio
import json
import os
import socket
import sys
import threading
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import rose
from rose.adapters.listening import listening
from tests.adapters.rig import rigged
from tests.adapters.test_trl_rollouts import Recording

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]
pytest.importorskip("trl", minversion="1.16", reason="TRL is not here: `make learn-env`")
TOKEN = "ab" * 32
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments }}{% endfor %}.{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ADD = {"type": "function", "function": {"name": "add", "arguments": {"number": 3}}}
# Each row of capital letters is a call of the tool.
CALLS = {
    "open_pattern": "[A-Z]",
    "close_pattern": "[^A-Z]",
    "repeats": True,
    "content": "text",
    "transform": ADD,
}
PARSED = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {"tool_calls": CALLS, "content": {"close_pattern": r"\.", "content": "text"}},
}


def tiny(folder: Path) -> None:
    """Save a model and a tokenizer whose tokens are the 256 bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({one: at for at, one in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=".", pad_token="_")
    fast.chat_template, fast.response_template = TEMPLATE, PARSED
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(letters),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=fast.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = [*range(32), fast.eos_token_id]  # so turns are short
    model.save_pretrained(folder)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@asynccontextmanager
async def following(worker, address: str, folder: Path):
    """Let a worker follow a publisher that does not listen yet; yield the weights it holds."""
    from safetensors.torch import load_file

    is_over = threading.Event()
    saved = load_file(folder / "model.safetensors")
    held = {name: one.bfloat16() * 0 for name, one in saved.items()}

    def follow() -> None:
        while not is_over.wait(0.05):
            with suppress(rose.Unavailable), rose.receive(held, address, token=TOKEN) as receiver:
                while not is_over.wait(0.005):
                    if (version := receiver.commit()) is not None:
                        worker.commit(version)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield held
    finally:
        is_over.set()
        await asyncio.to_thread(thread.join)


async def train(kind: str, ranks: int, folder: Path):
    """Train; return what was asked, the logs of the ranks, and what ranks and worker hold."""
    from safetensors.torch import load_file

    tiny(folder)
    publish, port = f"127.0.0.1:{free_port()}", free_port()
    async with rigged(2, step_s=0.001) as rig:
        app = Recording(rig.app)
        # The second worker never gets weights, as if serving left it no time.
        async with listening(app) as url, following(rig.workers[0], publish, folder) as held:
            processes = [
                await asyncio.create_subprocess_exec(
                    *(sys.executable, str(Path(__file__).with_name("trl_ranks.py"))),
                    *(kind, str(folder)),
                    env={
                        **os.environ,
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank),
                        "WORLD_SIZE": str(ranks),
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                        "ROLLOUT_URL": url,
                        "PUBLISH": publish,
                        "ROSE_TOKEN": TOKEN,
                        "OMP_NUM_THREADS": "1",
                        "TRL_EXPERIMENTAL_SILENCE": "1",
                    },
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                for rank in range(ranks)
            ]
            said = asyncio.gather(*(process.communicate() for process in processes))
            while not said.done():
                last = folder / "published"
                if last.exists() and last.read_text() == str(rig.workers[0].version):
                    (folder / "received").touch()
                if any(process.returncode for process in processes):
                    for process in processes:
                        with suppress(ProcessLookupError):
                            process.kill()
                await asyncio.sleep(0.05)
            for process, (output, _) in zip(processes, await said, strict=True):
                assert process.returncode == 0, output.decode()[-6000:]
            await rig.until_empty()
    logs = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    weights = [load_file(folder / f"rank{rank}.safetensors") for rank in range(ranks)]
    return app.asked, logs, weights, held


@pytest.mark.parametrize(("kind", "ranks"), [("text", 1), ("text", 2), ("peft", 2)])
def test_each_rank_has_seeds_of_its_own_and_workers_have_its_weights(kind, ranks, tmp_path) -> None:
    import torch

    if kind == "peft":
        pytest.importorskip("peft")
    asked, logs, weights, held = asyncio.run(train(kind, ranks, tmp_path))
    bodies = [body for _, body in asked]
    assert len({body["seed"] for body in bodies}) == len(bodies)
    assert len({headers["x-session-id"] for headers, _ in asked}) == len(bodies) == 12 * ranks
    first, *others = sorted({body["weight_version"]["min"] for body in bodies})
    assert others == [first + 1, first + 2]
    for rank in weights:
        assert rank.keys() == held.keys()
        assert all(torch.equal(rank[name], held[name]) for name in held)
    assert all(entry["reward_std"] > 0 for entry in logs[0])


def test_environments_see_their_row_and_keep_what_they_were_told(tmp_path) -> None:
    from transformers import AutoTokenizer

    asked, logs, *_ = asyncio.run(train("chat", 2, tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    by_session: dict[str, list[str]] = {}
    for headers, body in asked:
        session = by_session.setdefault(headers["x-session-id"], [])
        session.append(tokenizer.decode(body["prompt"]))
    assert len(by_session) == 24
    later = [text for turns in by_session.values() for text in turns[1:]]
    assert later
    for text in later:
        row = text.removeprefix("<user>")[0]
        assert text.startswith(f"<user>{row * 3}.<assistant>")
        assert text.endswith(f"<user>{row}.<assistant>")
    assert all(1 <= entry["reward"] <= 3 for entry in logs[0])
    assert any(entry["reward"] > 1 for entry in logs[0])


def test_tools_of_the_trainer_are_called_between_turns(tmp_path) -> None:
    asked, logs, *_ = asyncio.run(train("tools", 2, tmp_path))
    bodies = [body for _, body in asked]
    assert len({body["seed"] for body in bodies}) == len(bodies) > 24
    assert all(entry["tools/call_frequency"] > 0 for entry in logs[0])
    assert all(entry["tools/failure_frequency"] == 0 for entry in logs[0])
    assert any("sampling/importance_sampling_ratio/mean" in entry for entry in logs[0])
