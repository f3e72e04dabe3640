"""Tensors made to a publisher's layout follow it; vLLM is not needed for that."""

import numpy as np

import rose
from rose.api.vllm_weights import follow

WAIT_S = 60.0


def test_tensors_made_to_the_layout_get_the_publishers_values() -> None:
    published = {
        "one": np.arange(6, dtype=np.float32).reshape(2, 3),
        "two": np.ones(4, dtype=np.float16),
    }
    made: dict[str, np.ndarray] = {}

    def make(layout) -> dict[str, np.ndarray]:
        kinds = {"F32": np.float32, "F16": np.float16}
        made.update({name: np.zeros(shape, dtype=kinds[kind]) for name, kind, shape in layout})
        return made

    with (
        rose.publish(published) as publisher,
        follow(publisher.address, publisher.token, make) as follower,
    ):
        n = publisher.update({**published, "two": 2 * published["two"]})
        while (follower.version or 0) < n:
            follower.wait(WAIT_S)
            follower.commit()
    assert np.array_equal(made["one"], published["one"])
    assert np.array_equal(made["two"], 2 * published["two"])
