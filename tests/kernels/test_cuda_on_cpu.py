"""The stand-in for a GPU finds races, and barriers that not all threads reach."""

import ctypes
import subprocess

import pytest

from tests.kernels.on_cpu import FLAGS, HERE, Order

THREADS = 64

PROBES = """
#include "cuda_on_cpu.h"

struct Shared { unsigned number[64]; unsigned result; };

// Each thread reads its neighbour's number, with and without a barrier before.
extern "C" __global__ void race(unsigned* out) {
  __shared__ Shared shared;
  shared.number[threadIdx.x] = 100 + threadIdx.x;
  out[threadIdx.x] = shared.number[(threadIdx.x + 1) % 64];
}
extern "C" __global__ void no_race(unsigned* out) {
  __shared__ Shared shared;
  shared.number[threadIdx.x] = 100 + threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = shared.number[(threadIdx.x + 1) % 64];
}
// Each warp's number is read by all, twice; the second one must not be written too early.
extern "C" __global__ void overtakes(unsigned* out) {
  __shared__ Shared shared;
  unsigned sum = 0;
  for (unsigned round = 1; round <= 2; ++round) {
    const unsigned number = __reduce_max_sync(0xFFFFFFFF, round * 100 + threadIdx.x);
    if (threadIdx.x % 32 == 0) shared.number[threadIdx.x / 32] = number;
    __syncthreads();
    sum += round * (shared.number[0] + shared.number[1]);
  }
  out[threadIdx.x] = sum;
}
extern "C" __global__ void poison(unsigned* out) {
  __shared__ Shared shared;
  out[threadIdx.x] = shared.number[threadIdx.x];
  shared.number[threadIdx.x] = blockIdx.x;
}
extern "C" __global__ void half_come(unsigned*) { if (threadIdx.x < 32) __syncthreads(); }
extern "C" __global__ void two_places(unsigned*) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
extern "C" __global__ void lane_is_missing(unsigned*) {
  if (threadIdx.x != 40) __ballot_sync(0xFFFFFFFF, true);
}
extern "C" __global__ void lanes(unsigned* out) {
  const unsigned lane = threadIdx.x % 32;
  unsigned got = __ballot_sync(0xFFFFFFFF, lane % 3 == 0);
  got += __shfl_up_sync(0xFFFFFFFF, threadIdx.x, 1);
  got ^= __shfl_down_sync(0xFFFFFFFF, threadIdx.x, 2) << 8;
  if (lane < 4) got += __ballot_sync(0xF, lane == 2);
  got += __reduce_max_sync(0xFFFFFFFF, threadIdx.x ^ 5) << 16;
  out[threadIdx.x] = got + (__syncthreads_or(threadIdx.x == 63) << 31);
}

#define PROBE(name)                                                                   \\
  extern "C" const char* run_##name(unsigned* out, unsigned blocks, int order) {      \\
    static std::string error;                                                         \\
    error = cuda_on_cpu::Cta::current().run(                                          \\
        blocks, 64, static_cast<cuda_on_cpu::Order>(order), 3, [out] { name(out); }); \\
    return error.c_str();                                                             \\
  }
PROBE(race)
PROBE(no_race)
PROBE(overtakes)
PROBE(poison)
PROBE(half_come)
PROBE(two_places)
PROBE(lane_is_missing)
PROBE(lanes)
"""


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("probes")
    source, target = directory / "probes.cpp", directory / "probes.so"
    source.write_text(PROBES)
    subprocess.run(["g++", *FLAGS, "-O1", f"-I{HERE}", source, "-o", target], check=True)
    return ctypes.CDLL(str(target))


def run(probes: ctypes.CDLL, name: str, order: Order, *, blocks: int = 1) -> tuple[list[int], str]:
    out = (ctypes.c_uint32 * THREADS)()
    function = getattr(probes, f"run_{name}")
    function.restype = ctypes.c_char_p
    error = function(out, blocks, order.value)
    return list(out), error.decode()


def test_race_answers_differently_in_another_order(probes: ctypes.CDLL) -> None:
    answers = {tuple(run(probes, "race", order)[0]) for order in Order}
    assert len(answers) == len(Order)


def test_a_warp_that_overtakes_another_answers_differently(probes: ctypes.CDLL) -> None:
    in_step, error = run(probes, "overtakes", Order.FORWARD)
    assert not error
    assert in_step == [131 + 163 + 2 * (231 + 263)] * THREADS
    assert run(probes, "overtakes", Order.BACKWARD)[0] != in_step


def test_barrier_ends_the_race(probes: ctypes.CDLL) -> None:
    for order in Order:
        answer, error = run(probes, "no_race", order)
        assert answer == [100 + (i + 1) % THREADS for i in range(THREADS)]
        assert not error


def test_shared_memory_is_poisoned_before_each_block(probes: ctypes.CDLL) -> None:
    assert run(probes, "poison", Order.FORWARD, blocks=3)[0] == [0xA5A5A5A5] * THREADS


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("half_come", "not all threads of the CTA came"),
        ("two_places", "not all threads of the CTA came"),
        ("lane_is_missing", "not all lanes of its mask came"),
    ],
)
def test_missed_barrier_is_an_error(
    probes: ctypes.CDLL, order: Order, name: str, says: str
) -> None:
    _, error = run(probes, name, order)
    assert says in error
    _, error = run(probes, "no_race", order)
    assert not error, "the next run is not spoilt"


@pytest.mark.parametrize("order", Order)
def test_lanes_exchange_values_as_in_cuda(probes: ctypes.CDLL, order: Order) -> None:
    thirds = sum(1 << lane for lane in range(0, 32, 3))
    want = []
    for thread in range(THREADS):
        lane = thread % 32
        got = thirds + (thread - 1 if lane > 0 else thread)
        got ^= (thread + 2 if lane < 30 else thread) << 8
        got += 0b100 if lane < 4 else 0
        got += (thread // 32 * 32 + 31) << 16
        want.append((got + (1 << 31)) & 0xFFFFFFFF)
    answer, error = run(probes, "lanes", order)
    assert not error
    assert answer == want
