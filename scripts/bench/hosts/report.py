"""The document as a table."""

from typing import Any

from .rounds import COMPETITORS


def table(document: dict[str, Any]) -> str:
    """Return a block of lines for each workload and rate: samples a second, ratios, shares of the link."""
    lines = []
    for workload, links in document.items():
        for rate, found in links.items():
            lines.append(f"{workload} over {rate}, samples/s".ljust(40) + "pipeline by it".rjust(22) + "   MB   share")
            for role in COMPETITORS:
                ratio = found.get(f"pipeline/{role}")
                text = "{median:.3f} [{low:.3f}, {high:.3f}]".format(**ratio) if ratio else ""
                link = found.get(f"{role}_link")
                of_link = "{megabytes:7.2f} {share:6.2f}".format(**link) if link else ""
                lines.append(f"  {role.ljust(20)}{found[role]:10.1f}{text.rjust(30)}{of_link}".rstrip())
            lines.append(f"  load {found['load']}")
    return "\n".join(lines)


def launch_table(document: dict[str, Any]) -> str:
    """Return a line for each launcher: how long it is to the first minibatch."""
    rows = (
        f"  {launcher.ljust(20)}" + "{seconds:10.2f}   [{low:.2f}, {high:.2f}]   load {load}".format(**found)
        for launcher, found in document.items()
    )
    return "\n".join(["launch to first minibatch, seconds", *rows])
