"""Which slabs go first, by looking at all that are left, each time anew."""


def order_of_loss(users: dict[int, set[str]], progress: dict) -> list[int]:
    gone: set[str] = set()
    order: list[int] = []

    def cost(slab: int) -> tuple:
        lost = [progress[name] for name in users[slab] if name not in gone]
        return (
            any(one.is_in_flight for one in lost),
            sum(one.tokens for one in lost),
            max([one.age for one in lost], default=0.0),
            slab,
        )

    while len(order) < len(users):
        slab = min(users.keys() - set(order), key=cost)
        order.append(slab)
        gone |= users[slab]
    return order
