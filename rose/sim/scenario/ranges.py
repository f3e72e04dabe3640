"""What numbers of a scenario may be: the kinds that fields share."""

from typing import Annotated, Final, TypeAlias

from rose.sim.scenario.fields import Range

# A month, in seconds and in milliseconds: beyond it a unit was mistaken for another.
_MONTH_S: Final = 30 * 86_400.0

Share: TypeAlias = Annotated[float, Range(0, 1)]
Factor: TypeAlias = Annotated[float, Range(0, 1000, is_above=True)]
Seconds: TypeAlias = Annotated[float, Range(0, _MONTH_S, "s")]
SomeSeconds: TypeAlias = Annotated[float, Range(0, _MONTH_S, "s", is_above=True)]
SomeMilliseconds: TypeAlias = Annotated[float, Range(0, _MONTH_S * 1000, "ms", is_above=True)]
Gpus: TypeAlias = Annotated[int, Range(1, 65_536, "GPUs")]
Tokens: TypeAlias = Annotated[int, Range(1, 1 << 22, "tokens")]
Trajectories: TypeAlias = Annotated[int, Range(1, 1 << 20, "trajectories")]
Versions: TypeAlias = Annotated[int, Range(1, 100_000, "versions")]
Staleness: TypeAlias = Annotated[int, Range(0, 64, "versions")]
Seed: TypeAlias = Annotated[int, Range(0, (1 << 63) - 1)]
Rate: TypeAlias = Annotated[float, Range(0, 100_000, "Gb/s", is_above=True)]
DollarsPerHour: TypeAlias = Annotated[float, Range(0, 10_000, "$ per GPU-hour")]
