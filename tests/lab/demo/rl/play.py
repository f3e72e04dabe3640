"""A policy that says the same everywhere, and what trajectories it makes when nothing happens.

The token at a place of a context, its logprob and its version are functions of the trajectory's
sampling seed and the place alone. `play` knows neither scheduler nor workers nor rollouts.
"""

import hashlib

from rose_lab.demo.environments import Tokenizer, task
from rose_lab.demo.environments.text import EOS
from rose_lab.demo.rl.trajectory import NOT_GENERATED, Trajectory

RUN_SEED = 5
GROUP_SIZE = 3
TURN_MAX = 12
CONTEXT_MAX = 1000
TEXT = "NESWx (calc)+1"


def _byte(seed: int, position: int, what: str) -> int:
    return hashlib.sha256(f"{seed}/{position}/{what}".encode()).digest()[0]


def token_at(seed: int, position: int) -> int:
    """Return a letter, or now and then the end of the turn."""
    one = _byte(seed, position, "token")
    return EOS if one < 30 else ord(TEXT[one % len(TEXT)])


def logprob_at(seed: int, position: int) -> float:
    return -_byte(seed, position, "logprob") / 77


def version_at(seed: int, position: int) -> int:
    return _byte(seed, position, "version") % 3


def sampling_seed(number: int) -> int:
    return RUN_SEED * 1_000_003 + number


def play(number: int, group: int, *, context_max: int = CONTEXT_MAX) -> Trajectory:
    """Return the trajectory of an uninterrupted run; its reward is the sum over its steps."""
    tokenizer, seed = Tokenizer(), sampling_seed(number)
    drawn = task(RUN_SEED, group * GROUP_SIZE, group_size=GROUP_SIZE)
    tokens = list(tokenizer.prompt(drawn.environment.reset(drawn.seed)))
    places: set[int] = set()
    reward, turns = 0.0, 0
    while True:
        said: list[int] = []
        while len(said) < TURN_MAX and EOS not in said:
            place = len(tokens) + len(said)
            places.add(place)
            said.append(token_at(seed, place))
        tokens += said
        step = drawn.environment.step(tokenizer.decode(said))
        reward, turns = reward + step.reward, turns + 1
        heard = tokenizer.prompt(step.observation)
        if step.is_over or len(tokens) + len(heard) + TURN_MAX > context_max:
            break
        tokens += heard
    everywhere = range(len(tokens))
    return Trajectory(
        number=number,
        group=group,
        seed=drawn.seed,
        environment=drawn.environment.name,
        tokens=tuple(tokens),
        is_generated=tuple(place in places for place in everywhere),
        logprobs=tuple(logprob_at(seed, p) if p in places else 0.0 for p in everywhere),
        versions=tuple(version_at(seed, p) if p in places else NOT_GENERATED for p in everywhere),
        reward=reward,
        turns=turns,
    )
