"""Every Triton kernel compiles for its GPUs, ahead of time and without a GPU."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import interpreter as triton
from tests.kernels.interpreter import Child

# What the functions pass, by the name of the kernel's argument.
TYPES = {
    **dict.fromkeys("table payload lanes listed_lanes keys".split(), "*i32"),
    **dict.fromkeys("offsets sums".split(), "*i64"),
    "ages": "*u8",
    "age_limit": "i32",
    **dict.fromkeys("count first_word seed".split(), "i64"),
}
ELEMENTS = "new shadow bits differences".split()  # pointers to what `width` says
# kernel, and its compile-time arguments
WIDTHS: list[dict[str, Any]] = [{"width": 8}, {"width": 16}, {"width": 32}]
BLOCKS = [{"block_elements": 65_536, **one} for one in WIDTHS] + [
    {"block_elements": 16_384, "width": 16}
]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "topk.change_keys_kernel": [{"ages": None}, {}],
    "delta_apply.resize_kernel": [{"which": which, **one} for one in BLOCKS for which in (4, 5)],
    "delta_apply.steps_kernel": BLOCKS,
    "digest.digest_kernel": WIDTHS,
    "delta_pack.delta_pack_kernel": BLOCKS,
}


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    with triton.child(interpret=False) as running:
        # A cache of its own: what an earlier run compiled proves nothing.
        running.run(use_cache, tmp_path_factory.mktemp("triton"))
        yield running


def use_cache(folder: Path) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(folder)


# ---- what runs in the child ----------------------------------------------------------------------


def kernels() -> list[str]:
    import importlib
    import pkgutil

    from triton.runtime.jit import JITFunction

    import rose.kernels

    return sorted(
        f"{module.name}.{name}"
        for module in pkgutil.iter_modules(rose.kernels.__path__)
        for name, held in vars(importlib.import_module(f"rose.kernels.{module.name}")).items()
        if isinstance(held, JITFunction) and name.endswith("_kernel")
    )


def compiled(name: str, variant: dict[str, Any], target: tuple[Any, ...], aligned: bool) -> Any:
    """Compile one kernel for tensors whose addresses are multiples of 16 bytes, or are not."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rose.kernels.tile import NUM_WARPS

    module, function = name.split(".")
    kernel = getattr(importlib.import_module(f"rose.kernels.{module}"), function)
    types = TYPES | dict.fromkeys(ELEMENTS, f"*i{variant.get('width', 16)}")
    signature = {arg: "constexpr" if arg in variant else types[arg] for arg in kernel.arg_names}
    pointers = [i for i, kind in enumerate(signature.values()) if "*" in kind]
    return triton.compile(
        ASTSource(
            kernel,
            signature,
            {(kernel.arg_names.index(arg),): value for arg, value in variant.items()},
            {(i,): [["tt.divisibility", 16]] for i in pointers} if aligned else {},
        ),
        target=GPUTarget(*target),
        options={"num_warps": NUM_WARPS},
    )


def ptxas_report(name: str, variant: dict[str, Any], arch: int, aligned: bool) -> str:
    """Return the report of the assembler on a kernel, and the size of Triton's binary."""
    import triton

    kernel = compiled(name, variant, ("cuda", arch, 32), aligned)
    suffix = "a" if arch >= 90 else ""
    command = [triton.knobs.nvidia.ptxas.path, "-v", f"--gpu-name=sm_{arch}{suffix}"]
    done = subprocess.run(
        [*command, "/dev/stdin", "-o", "/dev/null"],
        input=kernel.asm["ptx"],
        capture_output=True,
        text=True,
    )
    return f"binary {len(kernel.asm['cubin'])}\n{done.stdout}{done.stderr}"


def cubin_of_spin() -> int:
    """Return the bytes of the kernel of `bench.gpu.suite_persistent`, as it launches it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from bench.gpu.spin_kernel import spin

    signature = {"out": "*fp32", "rounds": "i32", "block": "constexpr"}
    source = ASTSource(spin, signature, {(2,): 128}, {})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return len(made.asm["cubin"])


def amd_assembly(name: str, variant: dict[str, Any]) -> str:
    kernel = compiled(name, variant, ("hip", "gfx942", 64), aligned=True)
    assert kernel.asm["hsaco"]
    return kernel.asm["amdgcn"]


# ---- the tests -----------------------------------------------------------------------------------


def test_every_kernel_is_compiled_below(child: Child) -> None:
    assert child.run(kernels) == sorted(VARIANTS)


def variants_of(name: str, *, how_many: str) -> list[dict[str, Any]]:
    """Return all variants of a kernel, or one of 16 bits: to compile it all takes minutes."""
    common = (one for one in VARIANTS[name] if one.get("width", 16) == 16)
    return [next(common)] if how_many == "one" else VARIANTS[name]


how_many = pytest.mark.parametrize("how_many", ["one", pytest.param("all", marks=pytest.mark.slow)])


@how_many
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("name", VARIANTS)
def test_compiles_for_hopper_and_ampere(child: Child, name: str, arch: int, how_many: str) -> None:
    for variant in variants_of(name, how_many=how_many):
        # Of other widths only one: the code is the same.
        for aligned in (True, False) if variant.get("width", 16) == 16 else (True,):
            report = child.run(ptxas_report, name, variant, arch, aligned)
            assert re.search(r"^binary [1-9]", report), report
            spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
            assert spills == ["0", "0"], report


@how_many
@pytest.mark.parametrize("name", VARIANTS)
def test_compiles_for_mi300(child: Child, name: str, how_many: str) -> None:
    for variant in variants_of(name, how_many=how_many):
        assembly = child.run(amd_assembly, name, variant)
        assert re.findall(r"\.vgpr_spill_count: +(\d+)", assembly) == ["0"]


def test_persistent_kernel_of_the_device_suite_compiles(child: Child) -> None:
    assert child.run(cubin_of_spin) > 0
