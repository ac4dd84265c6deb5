"""Words for shares and gains, the same in decisions, outcomes, tables and notebooks."""


def faster_or_slower(share: float) -> str:
    """By which share minibatches are shorter, in words: "7.3% faster", "43.5% slower", "as fast"."""
    told = f"{abs(share):.1%}"
    if float(told[:-1]) == 0:
        return "as fast"
    return f"{told} {'faster' if share > 0 else 'slower'}"
