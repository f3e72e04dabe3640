"""Generations of a fixed length, always as many: the simplest rollouts there are."""

from collections.abc import Sequence

import numpy as np

from rose.engines.transformers import Engine, Output


class RolloutFeeder:
    """Keeps a fixed number of generations running on a borrower, from a fixed set of prompts."""

    def __init__(
        self,
        engine: Engine,
        *,
        concurrency: int,
        prompt_tokens: int,
        output_tokens: int,
        vocabulary: int,
        seed: int,
    ) -> None:
        """Prepare the prompt set; nothing runs before `start`.

        Args:
            engine: the borrower.
            concurrency: generations in flight.
            prompt_tokens: length of each prompt.
            output_tokens: length of each generation.
            vocabulary: token ids are drawn below this.
            seed: of the prompt set.
        """
        rng = np.random.default_rng(seed)
        self._engine = engine
        self._tokens = 0
        self._failures: list[str] = []
        self._concurrency = concurrency
        self._output_tokens = output_tokens
        self._prompts = rng.integers(vocabulary, size=(4 * concurrency, prompt_tokens)).tolist()
        self._next = 0

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return self._tokens

    @property
    def failures(self) -> Sequence[str]:
        """Why generations failed, the engine's own end included."""
        error = self._engine.error
        return self._failures if error is None else [*self._failures, str(error)]

    def start(self) -> None:
        """Start the engine and fill it; it stays paused until `resume`."""
        self._engine.start()
        self._engine.pause()
        for _ in range(self._concurrency):
            self._submit()

    def _submit(self) -> None:
        number = self._next
        self._next += 1
        self._engine.submit(
            f"rollout-{number}",
            self._prompts[number % len(self._prompts)],
            max_new_tokens=self._output_tokens,
            on_output=self._on_output,
        )

    def _on_output(self, output: Output) -> None:
        self._tokens += 1
        if output.is_finished():
            if output.error is not None:
                self._failures.append(output.error)
            elif self._engine.is_accepting:
                self._submit()

    def resume(self) -> None:
        """Let the borrower run."""
        self._engine.resume()

    def pause(self) -> None:
        """Stop the borrower at a step boundary; its requests and their KV stay."""
        self._engine.pause()

    def stop(self) -> None:
        """Let the engine run, so that it can be stopped."""
        if self._engine.is_running:
            self._engine.resume()
