"""What the verifier's rules are made of."""


def broken(*claims: tuple[bool, str]) -> list[str]:
    """Return the sentences of the claims that do not hold; a comparison with NaN does not."""
    return [sentence for holds, sentence in claims if not holds]
