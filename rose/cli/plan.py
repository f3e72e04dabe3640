"""`rose plan SERVING ROLLOUT`: whether two models fit a device, what can be lent, and why."""

import json
import math
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rose.cli.plan_advice import advice
from rose.cli.plan_numbers import BLOCK_TOKENS_MIN, Load, Plan, Setting, make_plan
from rose.cli.plan_record import plan_record
from rose.cli.plan_table import sections
from rose.errors import InvalidArgument
from rose.memory.model_shape import KVDtype
from rose.memory.model_weights import WeightDtype
from rose.memory.presets import find_model
from rose.units import GIB
from rose.whole_file import write_output

EXIT_DOES_NOT_FIT: Final = 1

_FLOAT32_BYTES: Final = 4
_KV_DTYPES: Final = {
    "bf16": KVDtype(2),
    "fp8": KVDtype(1),
    "fp8-per-token-head": KVDtype(1, head_scale_bytes=_FLOAT32_BYTES),
}
# So that products of tokens and requests fit the 32 bits of a certificate's terms.
_TOKENS: Final = click.IntRange(1, 1 << 22)
_BURST: Final = click.IntRange(0, 1000)
_REQUESTS: Final = click.IntRange(0, 1_000_000)
_RATE: Final = click.FloatRange(0, 1e8)
_GIB: Final = click.FloatRange(0, 1 << 20)


@click.command()
@click.argument("serving")
@click.argument("rollout")
@click.option(
    "--device-gb", type=_GIB, required=True, help="Memory of a device, in GiB of 2^30 bytes."
)
@click.option(
    "--tp", type=click.IntRange(1, 1024), default=1, show_default=True, help="Devices a model."
)
@click.option(
    "--block-tokens", type=click.IntRange(BLOCK_TOKENS_MIN, 256), default=16, show_default=True
)
@click.option(
    "--kv-dtype",
    type=click.Choice(list(_KV_DTYPES)),
    default="bf16",
    show_default=True,
    help="fp8-per-token-head keeps a float32 scale of each head of K and V in the block.",
)
@click.option(
    "--weights-dtype",
    type=click.Choice([dtype.value for dtype in WeightDtype]),
    help="Default: as the model was published.",
)
@click.option(
    "--activation-gb", type=_GIB, default=4.0, show_default=True, help="Of each engine, in GiB."
)
@click.option(
    "--requests", type=_REQUESTS, default=64, show_default=True, help="That serving runs at once."
)
@click.option(
    "--request-tokens", type=_TOKENS, default=8192, show_default=True, help="Of one, at most."
)
@click.option(
    "--rollout-tokens", type=_TOKENS, help="Of a rollout, at most. Default: as --request-tokens."
)
@click.option(
    "--prefill-tokens-per-s", type=_RATE, default=50_000.0, show_default=True, help="Of serving."
)
@click.option(
    "--decode-tokens-per-s", type=_RATE, default=100.0, show_default=True, help="Of one request."
)
@click.option(
    "--step-tokens", type=_TOKENS, default=8192, show_default=True, help="Prefilled in a step."
)
@click.option(
    "--burst-requests", type=_BURST, default=1, show_default=True, help="That arrive together."
)
@click.option(
    "--revoke-ms",
    type=click.FloatRange(0, 1e6),
    default=50.0,
    show_default=True,
    help="T: how long taking slabs back may last.",
)
@click.option(
    "--json", "out", type=click.Path(path_type=Path), metavar="FILE", help="Write it too."
)
@click.pass_context
def plan(
    ctx: click.Context,
    *,
    serving: str,
    rollout: str,
    device_gb: float,
    tp: int,
    block_tokens: int,
    kv_dtype: str,
    weights_dtype: str | None,
    activation_gb: float,
    requests: int,
    request_tokens: int,
    rollout_tokens: int | None,
    prefill_tokens_per_s: float,
    decode_tokens_per_s: float,
    step_tokens: int,
    burst_requests: int,
    revoke_ms: float,
    out: Path | None,
) -> None:
    """Say what SERVING and ROLLOUT leave of a device to lend, and why.

    Each is a model that rose knows by name (Qwen3-8B), or the path of a config.json or its folder.
    The exit status is 1 when they do not fit, with what would, and 2 when a model cannot be read.
    """
    setting = Setting(
        serving=find_model(serving),
        rollout=find_model(rollout),
        device_bytes=_bytes("--device-gb", device_gb),
        tp=tp,
        block_tokens=block_tokens,
        kv=_KV_DTYPES[kv_dtype],
        weights=WeightDtype(weights_dtype) if weights_dtype else None,
        activation_bytes=_bytes("--activation-gb", activation_gb),
        load=Load(
            requests=requests,
            request_tokens=request_tokens,
            step_tokens=step_tokens,
            burst_requests=burst_requests,
            prefill_tokens_per_s=prefill_tokens_per_s,
            decode_tokens_per_s=decode_tokens_per_s,
            revoke_ms=revoke_ms,
        ),
        rollout_tokens=rollout_tokens or request_tokens,
    )
    made = make_plan(setting)
    sentences = advice(made)
    if out is not None:
        write_output(out, f"{json.dumps(plan_record(made, sentences), indent=2)}\n".encode())
    _print(Console(highlight=False), made, sentences)
    if not made.fits:
        ctx.exit(EXIT_DOES_NOT_FIT)


def _bytes(option: str, gib: float) -> int:
    if not math.isfinite(gib):
        raise InvalidArgument(f"{option} of {gib} is no size")
    return int(gib * GIB)


def _print(console: Console, made: Plan, sentences: list[str]) -> None:
    title = f"{made.serving.shape.name} serves, {made.rollout.shape.name} rolls out"
    table = Table("what", "how much", "why", title=Text(title))
    table.columns[1].justify = "right"
    for rows in sections(made):
        for row in rows:
            table.add_row(Text(row.what), Text(row.amount, no_wrap=True), Text(row.why))
        table.add_section()
    console.print(table)
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=True)
