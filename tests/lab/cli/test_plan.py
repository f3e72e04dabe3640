"""`rose plan`: its arithmetic against plain sums and a real pool, and what it says."""

import json
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rose._core import AdmissionTerms, Arbiter, largest_grant
from rose.cli.main import main
from rose.errors import InvalidArgument
from rose.memory import KVSpace
from rose.memory.model_config import read_shape
from rose.memory.model_shape import KVDtype, ModelShape
from rose.memory.model_weights import WeightDtype
from rose.memory.presets import find_model, preset_names
from rose.units import GIB, MIB
from rose_lab.cli.plan import advice
from rose_lab.cli.plan_numbers import Load, Setting, make_plan
from rose_lab.numbers import size_text
from tests.reference.slo import ServingMemory, worst_horizon_fits

LOAD = Load(
    requests=64,
    request_tokens=8192,
    step_tokens=8192,
    burst_requests=1,
    prefill_tokens_per_s=50_000.0,
    decode_tokens_per_s=100.0,
    revoke_ms=50.0,
)
SETTING = Setting(
    serving=find_model("Llama-3.1-8B"),
    rollout=find_model("Llama-3.1-8B"),
    device_bytes=80 * GIB,
    tp=1,
    block_tokens=16,
    kv=KVDtype(2),
    weights=None,
    activation_bytes=4 * GIB,
    load=LOAD,
    rollout_tokens=8192,
)


def small(name: str, **more) -> ModelShape:
    """Return a model whose block of 16 tokens is 32 KiB a layer, or less where it has a window."""
    config = {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 1000,
        **more,
    }
    return read_shape(config, name=name)


FULL = small("full")
WINDOWED = small("windowed", model_type="gemma3_text", sliding_window=64)
THIN = small("thin", num_key_value_heads=2, num_hidden_layers=5)


def run(capsys, *arguments):
    status = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# --- the arithmetic -------------------------------------------------------------------------------


def test_numbers_are_those_of_a_sum_by_hand() -> None:
    plan = make_plan(SETTING)
    weights = 2 * 8_030_261_248
    assert plan.serving.weight_bytes == plan.rollout.weight_bytes == weights
    assert plan.pool_bytes == 80 * GIB - 2 * weights - 8 * GIB
    # 128 KiB a token: a block is 2 MiB, two of them make a slab, and nothing is wasted.
    assert plan.slab_bytes == 4 * MIB
    assert plan.header_slabs == 2
    assert plan.slabs == plan.pool_bytes // (4 * MIB) - 2
    assert plan.held_slabs == 64 * 512 // 2
    balance = plan.balance(plan.serving.groups[0], running=64)
    # 6 tokens in 50 ms: a block each. Two prompts of 8192 tokens wait, of which a step has begun
    # with 8192 and 2500 follow: 10,692 tokens, and 6 of an answer. One more request can begin a
    # block, and fill it with the first tokens of its answer.
    assert (balance.growth_blocks, balance.request_blocks, balance.burst_blocks) == (64, 669, 2)
    assert plan.reserve_slabs(running=64) == 368
    assert plan.reserve_slabs(running=0) == 336
    assert plan.lendable_idle == plan.slabs - 336
    assert plan.lendable_busy == 0  # serving alone would take 64 GiB
    assert plan.rollouts(plan.lendable_idle) == plan.lendable_idle // 256
    assert plan.serving_requests() == plan.slabs // 256


SETTINGS = st.builds(
    lambda serving, rollout, device_mib, activation_mib, load, rollout_tokens: replace(
        SETTING,
        serving=serving,
        rollout=rollout,
        device_bytes=device_mib * MIB,
        activation_bytes=activation_mib * MIB,
        load=load,
        rollout_tokens=rollout_tokens,
    ),
    st.sampled_from([FULL, WINDOWED, THIN]),
    st.sampled_from([FULL, WINDOWED, THIN]),
    st.integers(1, 2000),
    st.integers(0, 50),
    st.builds(
        Load,
        requests=st.integers(0, 40),
        request_tokens=st.integers(1, 600),
        step_tokens=st.integers(1, 300),
        burst_requests=st.integers(0, 3),
        prefill_tokens_per_s=st.sampled_from([0.0, 1000.0, 20_000.0]),
        decode_tokens_per_s=st.sampled_from([0.0, 30.0, 1000.0]),
        revoke_ms=st.sampled_from([0.0, 20.0, 100.0]),
    ),
    st.integers(1, 600),
)


@given(setting=SETTINGS)
def test_every_byte_of_the_device_has_one_use(setting: Setting) -> None:
    plan = make_plan(setting)
    if plan.slabs == 0:
        assert plan.lendable_idle == plan.lendable_busy == 0
        return
    rest = plan.pool_bytes - (plan.header_slabs + plan.slabs) * plan.slab_bytes
    assert 0 <= rest < plan.slab_bytes
    reserve = plan.reserve_slabs(running=setting.load.requests)
    assert plan.lendable_busy <= plan.lendable_idle <= plan.slabs
    if plan.lendable_busy:
        assert plan.held_slabs + reserve + plan.lendable_busy == plan.slabs


@given(setting=SETTINGS)
def test_it_fits_on_the_least_device_and_on_none_smaller(setting: Setting) -> None:
    plan = make_plan(setting)
    assert plan.fits == (setting.device_bytes >= plan.least_device_bytes)
    assert make_plan(replace(setting, device_bytes=plan.least_device_bytes)).fits
    assert not make_plan(replace(setting, device_bytes=plan.least_device_bytes - 1)).fits


@given(setting=SETTINGS, more=st.integers(1, 40))
def test_more_of_a_demand_never_leaves_more_to_lend(setting: Setting, more: int) -> None:
    lendable, load = make_plan(setting).lendable_busy, setting.load
    for heavier in (
        replace(load, requests=load.requests + more),
        replace(load, request_tokens=load.request_tokens + more),
        replace(load, revoke_ms=load.revoke_ms + more),
        replace(load, burst_requests=load.burst_requests + more),
    ):
        assert make_plan(replace(setting, load=heavier)).lendable_busy <= lendable


@given(setting=SETTINGS.filter(lambda setting: setting.serving is not WINDOWED))
def test_after_the_largest_loan_the_worst_that_can_come_fits(setting: Setting) -> None:
    """All requests are full when the loan is made; the prompts of a burst share the engine."""
    plan, load = make_plan(setting), setting.load
    if plan.lendable_busy == 0:
        return
    (group,) = plan.serving.groups
    memory = ServingMemory(
        blocks_per_slab=group.geometry.blocks_per_slab(plan.slab_bytes),
        free=0,
        unowned_slabs=plan.slabs - plan.held_slabs - plan.lendable_busy,
        revocable=0,
    )
    left = load.step_tokens + int(load.prefill_tokens_per_s * load.revoke_ms / 1000)
    prompts = []
    for _ in range(1 + load.burst_requests):
        prompts.append(min(left, load.request_tokens))
        left -= prompts[-1]
    assert worst_horizon_fits(
        memory,
        block_tokens=setting.block_tokens,
        horizon_ms=int(load.revoke_ms),
        stored=[0] * load.requests,  # the next token of each begins a block
        decode_tokens_per_s=int(load.decode_tokens_per_s),
        prompts=prompts,
    )


@given(setting=SETTINGS, running=st.integers(0, 3))
def test_a_pool_of_that_shape_lends_what_the_plan_says(setting: Setting, running: int) -> None:
    """Build the pool, let serving hold its requests, and ask the certificate's own formula."""
    load = replace(setting.load, requests=running)
    plan = make_plan(replace(setting, load=load, device_bytes=300 * MIB))
    if plan.lendable_busy == 0:
        return
    arbiter = Arbiter.create(
        slab_bytes=plan.slab_bytes, slab_count=plan.slabs, header_slabs=plan.header_slabs
    )
    groups = (*plan.serving.groups, *plan.rollout.groups)
    spaces = []
    for header, group in enumerate(groups):
        partition = arbiter.add_partition(str(header), reserve_slabs=0, limit_slabs=plan.slabs)
        spaces.append(KVSpace(arbiter, partition, group.geometry, header_index=header))
    kept = 0
    for space, group in zip(spaces, plan.serving.groups, strict=False):
        blocks = running * group.blocks_for(load.request_tokens)
        arbiter.take(space.partition, -(-blocks // space.blocks_per_slab))
        assert space.allocator.alloc(blocks) is not None or blocks == 0
        terms = AdmissionTerms(
            epoch=0,
            to_partition=0,
            slabs=0,
            blocks_per_slab=space.blocks_per_slab,
            block_tokens=setting.block_tokens,
            free_serving_blocks=0,
            unowned_slabs=plan.slabs,
            revocable_blocks=0,
            horizon_ms=load.revoke_ms,
            running_requests=running,
            decode_tokens_per_s=load.decode_tokens_per_s,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            max_request_tokens=min(
                load.request_tokens,
                16 * group.blocks_for(load.request_tokens, step_tokens=load.step_tokens),
            ),
            max_batch_tokens=load.step_tokens,
            burst_requests=load.burst_requests,
            burst_request_tokens=min(
                load.request_tokens,
                16 * group.blocks_for(load.request_tokens, step_tokens=load.step_tokens),
            ),
        )
        kept += plan.slabs - largest_grant(terms)
    assert plan.lendable_busy == arbiter.snapshot().unowned - kept
    if plan.lendable_busy < plan.quantum_slabs:
        return  # too few for a slab of each group, as the plan says
    # The loan is real: each group of the rollouts has its part, and serving the rest.
    for space in spaces[len(plan.serving.groups) :]:
        assert len(arbiter.take(space.partition, plan.lendable_busy // plan.quantum_slabs)) > 0
        assert space.allocator.free_blocks > 0
    arbiter.check_invariants()


def test_a_window_makes_room() -> None:
    setting = replace(SETTING, device_bytes=400 * MIB, activation_bytes=0, rollout=THIN)
    load = replace(LOAD, requests=4, request_tokens=4096, step_tokens=256)
    # The same layers, once with windows of 64 tokens in six of eight.
    plain = small("plain", model_type="gemma3_text", layer_types=["full_attention"] * 8)
    full = make_plan(replace(setting, serving=plain, load=load))
    windowed = make_plan(replace(setting, serving=WINDOWED, load=load))
    assert full.serving.weight_bytes == windowed.serving.weight_bytes
    assert windowed.lendable_busy > full.lendable_busy


def test_prompt_behind_a_window_is_no_longer_than_window_and_step() -> None:
    load = replace(LOAD, request_tokens=4096, step_tokens=256, burst_requests=0)
    plan = make_plan(replace(SETTING, serving=WINDOWED, load=load))
    sliding, full = plan.serving.groups
    assert plan.balance(full, running=0).request_blocks == (256 + 2500 + 15) // 16
    # A window of 64 tokens and a step of 256 are 20 blocks at most, one for where they begin, and
    # one for the first tokens of the answer.
    assert plan.balance(sliding, running=0).request_blocks == 22


def test_quantum_is_a_slab_for_each_group_of_the_rollouts() -> None:
    assert make_plan(SETTING).quantum_slabs == 1
    plan = make_plan(replace(SETTING, rollout=WINDOWED))
    assert plan.quantum_slabs == 2
    a_token = make_plan(replace(SETTING, rollout=WINDOWED, rollout_tokens=1))
    assert (a_token.rollouts(1), a_token.rollouts(2) > 0) == (0, True)


# --- advice ---------------------------------------------------------------------------------------


def test_what_would_fit_does() -> None:
    too_large = replace(
        SETTING, serving=find_model("Llama-3.1-70B"), rollout=find_model("Qwen3-32B")
    )
    said = " ".join(advice(make_plan(too_large)))
    least = -(-make_plan(too_large).least_device_bytes // GIB)
    assert f"a device of {least} GiB" in said
    assert make_plan(replace(too_large, device_bytes=least * GIB)).fits
    assert "--tp 4" in said
    assert not make_plan(replace(too_large, tp=2)).fits
    assert make_plan(replace(too_large, tp=4)).fits
    assert "fp8" not in said  # which is true:
    assert not make_plan(replace(too_large, weights=WeightDtype.FP8)).fits
    on_larger = replace(too_large, device_bytes=141 * GIB)
    assert any("--weights-dtype fp8" in one for one in advice(make_plan(on_larger)))
    assert make_plan(replace(on_larger, weights=WeightDtype.FP8)).fits


def test_busy_serving_is_told_apart_from_one_that_does_not_fit() -> None:
    said = " ".join(advice(make_plan(SETTING)))
    assert "Nothing can be lent while serving is that busy" in said
    plan = make_plan(SETTING)
    assert f"room for {plan.serving_requests()} of the 64 requests" in said
    roomy = replace(SETTING, load=replace(LOAD, requests=2))
    assert advice(make_plan(roomy)) == []


def test_text_part_is_said_to_be_one_once() -> None:
    gemma = find_model("gemma-3-27b")
    said = advice(make_plan(replace(SETTING, serving=gemma, rollout=gemma, device_bytes=200 * GIB)))
    assert len([one for one in said if "only its text part" in one]) == 1


def test_slab_that_cannot_be_is_refused_with_blocks_that_can() -> None:
    large = replace(SETTING, serving=find_model("Llama-3.1-70B"), block_tokens=256)
    with pytest.raises(InvalidArgument, match="lower block_tokens; --block-tokens 128 would work"):
        make_plan(large)
    make_plan(replace(large, block_tokens=128))


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["80", "100", "200"])
def test_table_says_every_number_and_why(capsys, monkeypatch, columns) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    status, out, err = run(capsys, "Qwen2.5-7B", "Qwen3-8B", "--device-gb", 141)
    assert (status, err) == (0, "")
    assert "…" not in out
    for what in ("device", "weights", "activations", "pool", "slab", "quantum", "reserve", "lent"):
        assert what in out
    for number in ("7,615,616,512", "8,190,735,360", "12.00 MiB", "56.00 KiB/token", "144.00 KiB"):
        assert number in out


def test_options_shape_the_plan(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ("gemma-3-27b", "DeepSeek-V3", "--device-gb", 141, "--tp", 8, "--kv-dtype", "fp8")
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    serving, rollout = find_model("gemma-3-27b"), find_model("DeepSeek-V3")
    plan = make_plan(
        replace(
            SETTING,
            serving=serving,
            rollout=rollout,
            device_bytes=141 * GIB,
            tp=8,
            kv=KVDtype(1),
        )
    )
    assert "KV, serving, sliding" in out
    for size in (
        plan.pool_bytes,
        plan.slab_bytes,
        plan.rollout.weight_bytes,
        plan.reserve_slabs(running=64) * plan.slab_bytes,
        plan.lendable_idle * plan.slab_bytes,
        plan.lendable_busy * plan.slab_bytes,
    ):
        assert size_text(size) in out


def test_what_does_not_fit_is_status_1_with_what_would(capsys) -> None:
    status, said, err = run(capsys, "Qwen2.5-72B", "Qwen2.5-72B", "--device-gb", 141)
    assert (status, err) == (1, "")
    assert "It does not fit: weights and activations exceed the device by 137.9 GiB." in said
    assert "It would fit on these devices with --tp 4." in said


def test_model_of_a_file_is_planned(capsys, tmp_path) -> None:
    config = {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, out, _ = run(capsys, tmp_path, "qwen3-8b", "--device-gb", 80)
    assert status == 0
    assert "596,049,920" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Qwen3-8B",), "ROLLOUT"),
        (("Qwen3-8B", "Qwen3-8B"), "--device-gb"),
        (("Qwen3-8B", "Qwen9", "--device-gb", 80), "no model 'Qwen9'; name a config.json"),
        (
            ("Qwen3-8B", "Qwen3-8B", "--device-gb", "nan"),
            "'--device-gb': nan is not a finite number",
        ),
        (("Qwen3-8B", "Qwen3-8B", "--device-gb", "inf"), "inf"),
        (("Qwen3-8B", "Qwen3-8B", "--device-gb", -1), "-1"),
        (("Qwen3-8B", "Qwen3-8B", "--device-gb", 80, "--tp", 3), "cannot be divided by tp 3"),
        (("Qwen3-8B", "Qwen3-8B", "--device-gb", 80, "--block-tokens", 8), "16<=x<=256"),
        (("Qwen3-8B", "Qwen3-8B", "--device-gb", 80, "--kv-dtype", "int4"), "int4"),
        (
            ("Qwen3-8B", "Qwen3-8B", "--device-gb", 80, "--decode-tokens-per-s", "nan"),
            "nan is not a finite",
        ),
        (("Qwen3-8B", "Qwen3-8B", "--device-gb", 80, "--revoke-ms", "nan"), "nan is not a finite"),
        (("Llama-3.1-70B", "Qwen3-8B", "--device-gb", 80, "--block-tokens", 256), "128 would work"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(capsys, arguments, says) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("rose: ")
    assert err.count("\n") == 1
    assert says in err


def test_extremes_of_the_options_are_answered(capsys) -> None:
    limits = ("--requests", 10**6, "--request-tokens", 1 << 22, "--burst-requests", 1000)
    rates = ("--prefill-tokens-per-s", 1e8, "--decode-tokens-per-s", 1e8, "--revoke-ms", 1e6)
    status, out, _ = run(capsys, "Qwen3-8B", "Qwen3-8B", "--device-gb", 1024, *limits, *rates)
    assert status == 1
    assert "It would fit on a device of" in out
    assert run(capsys, "Qwen3-8B", "Qwen3-8B", "--device-gb", 80, "--requests", 0)[0] == 0


def test_every_preset_can_be_planned_beside_every_other() -> None:
    for serving in preset_names():
        for rollout in preset_names():
            pair = replace(SETTING, serving=find_model(serving), rollout=find_model(rollout))
            assert make_plan(replace(pair, device_bytes=4096 * GIB)).fits
