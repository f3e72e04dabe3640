"""Which slabs go first, by looking at all that are left, each time anew."""


def order_of_loss(slabs: set[int], requests: list[tuple]) -> list[int]:
    """Return the order; each of `requests` is its slabs and its `Progress`."""
    gone: set[int] = set()
    order: list[int] = []

    def cost(slab: int) -> tuple:
        lost = [one for held, one in requests if slab in held and not held & gone]
        return (
            any(one.is_in_flight for one in lost),
            sum(one.tokens for one in lost),
            max([one.age for one in lost], default=0.0),
            slab,
        )

    while len(order) < len(slabs):
        slab = min(slabs - gone, key=cost)
        order.append(slab)
        gone.add(slab)
    return order
