"""Both engines at each other's throats: nobody ever finds somebody else's bytes in its blocks."""

import random
import time

import numpy as np

import rose


def rows(tokens, first: int, last: int) -> list[tuple[int, int]]:
    """Blocks and slots of tokens `first` to `last`."""
    size = tokens._kv.geometry.block_tokens
    return [(tokens.blocks[at // size], at % size) for at in range(first, last)]


def write(views, tokens, first: int, last: int, mark: int) -> None:
    for at, (block, slot) in enumerate(rows(tokens, first, last), start=first):
        views[0][block].reshape(tokens._kv.geometry.block_tokens, -1)[slot, 0] = mark + at


def check(views, tokens, mark: int) -> None:
    for at, (block, slot) in enumerate(rows(tokens, 0, tokens.computed)):
        found = views[0][block].reshape(tokens._kv.geometry.block_tokens, -1)[slot, 0]
        assert found == mark + at


def test_every_token_is_computed_once_its_blocks_are_its_own(open_rig) -> None:
    # A short deadline, so that serving could need little before a loan is back.
    rig = open_rig(
        slabs=24, revoke_ms=200.0, regrow_after_ms=1.0, arrival_memory_ms=1.0, aborts_per_s=1000.0
    )
    views = rig.borrower.kv.views(np.int32)
    done: list[rose.Sequence] = []
    seen = {"lost": 0, "aborted": 0}

    def roll_out() -> None:
        draw = random.Random(1)
        running = [rig.sequence(draw.randrange(1, 200)) for _ in range(6)]
        for step in rig.borrower.steps(running):
            with step:
                for one in step.sequences:
                    check(views, one, one.number << 16)
                    seen["lost"] += one.lost
                    time.sleep(0.001)  # so that serving often arrives within a step
                    step.gate()
                    write(views, one, one.computed, step.tokens[one], one.number << 16)
                    step.gate()
            seen["aborted"] += not step.is_done
            for one in step.sequences if step.is_done else ():
                if one.tokens <= 300:
                    one.grow(draw.randrange(1, 60))
                    continue
                running.remove(one)
                one.close()
                done.append(one)
                has_seen_all = len(done) + len(running) >= 150 and all(seen.values())
                if not has_seen_all and time.monotonic() < until:
                    running.append(rig.sequence(draw.randrange(1, 200)))

    until = time.monotonic() + 100.0
    thread = rig.start(roll_out)
    draw = random.Random(2)
    mine = rig.serving.kv.views(np.int32)
    while thread.is_alive():
        requests = [
            rig.serving.request(prompt_tokens=draw.randrange(1, 200))
            for _ in range(draw.randrange(1, 6))
        ]
        for _ in range(3):
            with rig.serving.step(decode=requests):
                for number, one in enumerate(requests):
                    mark = -(number + 1 << 16)
                    check(mine, one, mark)
                    write(mine, one, one.computed, one.tokens, mark)
                time.sleep(0.002)
        for one in requests:
            one.close()
        time.sleep(draw.random() * 0.1)
    assert len(done) >= 150
    assert rig.used() == (0, 0)
    assert seen["lost"] > 0
    assert seen["aborted"] > 0
