"""`rose.attach`: run a transformers engine as the serving engine or the borrower of a device."""

from collections.abc import Sequence
from typing import Literal

from rose.api.device import Device
from rose.engines.transformers import Engine, EngineConfig, Model, Output
from rose.engines.transformers.engine import kv_geometry, rollout_engine, serving_engine
from rose.engines.transformers.outputs import OnOutput
from rose.engines.transformers.sampling import Sampling
from rose.errors import InvalidArgument, RoseError
from rose.executor import ServingLane

Role = Literal["serving", "borrower"]


def attach(
    model: Model,
    *,
    device: Device,
    role: Role,
    config: EngineConfig | None = None,
    request_tokens: int = 32768,
) -> "Attached":
    """Build a continuous-batching engine of transformers on a device. Attach "serving" first.

    Args:
        model: a causal language model of transformers.
        device: the device that both engines share.
        role: "serving": the engine's steps are protected, and its requests pause rollouts.
            "borrower": the engine waits at a gate before each layer and yields to serving.
        config: sizes of the engine's steps and cache; None: the defaults.
        request_tokens: maximum tokens of a serving prompt. Start-up measures steps with a context
            of this length.

    Raises:
        InvalidArgument: the role is unknown, the device already has an engine in this role, or its
            pool is too small for serving.
        Unavailable: this version of transformers is not supported.
    """
    if role not in {"serving", "borrower"}:
        raise InvalidArgument(f"role '{role}' is unknown: use 'serving' or 'borrower'")
    config = config or EngineConfig()
    geometry = kv_geometry(model, config)
    if role == "borrower":
        lane = device.borrower(geometry).lane
        return Attached(rollout_engine(model, lane, config, layers_per_segment=1))
    serving = device.serving(
        geometry, step_tokens=config.max_batch_tokens, request_tokens=request_tokens
    ).lane
    return Attached(serving_engine(model, serving, config), serving)


class Attached:
    """A transformers engine on a device; made by `attach`.

    Call `start`, then `submit` for every request, then `stop`. A serving engine also runs steps
    while it is idle, to measure them, so that lending can begin.
    """

    def __init__(self, engine: Engine, lane: ServingLane | None = None) -> None:
        """Use `engine`, and announce its requests to `lane` if it is the serving engine."""
        self.engine = engine
        self._lane = lane

    def start(self) -> None:
        """Start the generation thread."""
        self.engine.start()

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        *,
        max_new_tokens: int,
        on_output: OnOutput,
        sampling: Sampling | None = None,
        stop_tokens: Sequence[int] = (),
    ) -> None:
        """Queue a request, like `Engine.submit`; on a serving engine, also announce it to rose.

        Args:
            request_id: id that no other live request has.
            prompt: token ids.
            max_new_tokens: number of tokens to generate, > 0.
            on_output: function that is called in the generation thread for every token, with the
                output so far.
            sampling: sampling parameters; only for an engine with `EngineConfig(sampling=True)`.
            stop_tokens: token ids that end the request.

        Raises:
            InvalidArgument: `sampling` is given, but the engine decodes greedily.
            Unavailable: the generation thread is stopping or has died.
        """
        lane = self._lane

        def announced(output: Output) -> None:
            if lane is not None:
                lane.emitted(request_id)
                if output.is_finished():
                    lane.finished(request_id)
            on_output(output)

        if lane is not None:
            lane.arrived(request_id, prompt_tokens=len(prompt))
        try:
            self.engine.submit(
                request_id,
                prompt,
                max_new_tokens=max_new_tokens,
                on_output=announced,
                sampling=sampling,
                stop_tokens=stop_tokens,
            )
        except RoseError:
            if lane is not None:
                lane.finished(request_id)
            raise

    def cancel(self, request_id: str) -> None:
        """Stop a request; its `on_output` gets the output so far, marked as failed."""
        self.engine.cancel(request_id)

    def stop(self) -> None:
        """Stop the engine at the next step boundary; unfinished requests fail."""
        self.engine.stop()
