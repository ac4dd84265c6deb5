"""The document as a table."""

from typing import Any

from .cases import CASES
from .rounds import COMPETITORS


def table(document: dict[str, Any]) -> str:
    """Return a block of lines for each workload: samples a second, and the pipeline's ratio to each competitor."""
    lines = []
    for name, found in ((name, found) for name, found in document.items() if name in CASES):
        lines.append(f"{name}, samples/s".ljust(32) + "pipeline by it".rjust(20))
        for role in COMPETITORS:
            rate = "-" if found[role] is None else f"{found[role]:.1f}"
            ratio = found.get(f"pipeline/{role}")
            text = "{median:.3f} [{low:.3f}, {high:.3f}]".format(**ratio) if ratio else ""
            lines.append(f"  {role.ljust(20)}{rate.rjust(10)}{text.rjust(24)}".rstrip())
        held, peak = (", ".join(f"{share:.2f}" for share in found[which]) or "-" for which in ("held", "peak"))
        lines.append(f"  load {found['load']}; by the plan's figure the stages held {held}, their processes {peak}")
        lines.append(f"  sum of the profiled layers by a whole step: {found['layers_over_whole']:.2f}")
    if "overhead_ms" in document:
        lines.append(f"overhead: {document['overhead_ms']:.3f} ms a minibatch and stage")
        lines += [
            f"channel, {size}: {how} {rate[packets]:.2f} GB/s, {rate[f'{packets}/gloo_in_turn']:.2f} of gloo's own "
            f"with as many messages on their way, {rate[f'{packets}/gloo']:.2f} with all posted before"
            for size, rate in document["channel"]["rates"].items()
            for how, packets in (("shared memory", "packets"), ("sockets", "packets_by_sockets"))
        ]
        lines += [
            f"cut after {cut['cut']}: one message; of SparsePipe's bytes {_exact(cut, 'lossless')} (through sockets); "
            f"{_exact(cut, 'zeros')}; plain {cut['of_six_messages_none']:.2f}, {cut['bytes']:.0f} bytes; "
            f"as bfloat16 {cut['of_six_messages_bfloat16']:.2f}, int8 {cut['of_six_messages_int8']:.2f}"
            for cut in document["channel"]["minkvgg16bn"]
        ]
    return "\n".join(lines)


def _exact(cut: dict[str, Any], how: str) -> str:
    key = f"of_six_messages_{how}"
    return f"{how} {cut[key]:.2f}, {cut[f'{key}_backward']:.2f} back, {cut[f'{key}_both_ways']:.2f} both ways"
