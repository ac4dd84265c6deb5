"""What a job does right now, read from its record: phase and time left, what each rank is busy with, its log."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..plan import Plan
from ..plots.theme import GREY, LIGHT_GREY, stage_color
from ..trace import WORK

Row = Mapping[str, Any]
WINDOW = 5.0  # seconds that count as now
_TAIL = 65536  # bytes read from the end of a file that grows
_LOG_LINES = 40


@dataclass(frozen=True)
class Doing:
    """Shares of the last seconds of one rank; `waits_for`: rank → share of them."""

    rank: int
    stage: int
    work: float
    sending: float
    loading: float
    waits_for: Mapping[int, float]

    @property
    def waiting(self) -> float:
        return sum(self.waits_for.values())


def doings(folder: Path, *, window: float = WINDOW) -> list[Doing]:
    """What each rank of a run did in its last `window` seconds; nothing before the first span is written."""
    spans = [row for path in sorted(folder.glob("trace-rank*.jsonl")) for row in _last_rows(path)]
    if not spans:
        return []
    now = max(row["end"] for row in spans)
    begin = max(now - window, min(row["start"] for row in spans))
    length = max(now - begin, 1e-9)
    found = []
    for rank in sorted({row["rank"] for row in spans}):
        shares: dict[str, float] = {}
        waits: dict[int, float] = {}
        own = [row for row in spans if row["rank"] == rank and row["end"] > begin]
        for row in own:
            share = (row["end"] - max(row["start"], begin)) / length
            if row["kind"] == "wait":
                waits[row["peer"]] = waits.get(row["peer"], 0.0) + share
            else:
                shares[row["kind"]] = shares.get(row["kind"], 0.0) + share
        work = sum(shares.get(kind, 0.0) for kind in WORK)
        sending = shares.get("send", 0.0) + shares.get("average", 0.0)
        stage = own[-1]["stage"] if own else 0
        found.append(Doing(rank, stage, work, sending, shares.get("load", 0.0), waits))
    return found


def doings_table(found: Iterable[Doing]) -> str:
    """A bar for each rank, and who waits for whom, as HTML."""
    rows = []
    for one in found:
        parts = (
            (one.work, stage_color(one.stage), "work"),
            (one.sending, stage_color(one.stage, "update"), "sending"),
            (one.loading, GREY, "loading"),
            (one.waiting, LIGHT_GREY, "waiting"),
        )
        bar = "".join(
            f"<span title='{name} {share:.0%}' "
            f"style='display:inline-block;height:12px;width:{min(share, 1) * 200:.0f}px;background:{color}'></span>"
            for share, color, name in parts
        )
        waits = sorted(one.waits_for.items(), key=lambda item: -item[1])
        told = ", ".join(f"{share:.0%} for {_peer(peer)}" for peer, share in waits if share >= 0.01)
        rows.append(
            f"<tr><td style='padding-right:10px'>rank {one.rank}, stage {one.stage}</td>"
            f"<td style='width:210px;white-space:nowrap'>{bar}</td>"
            f"<td style='padding-right:10px'>{one.work:.0%} at work</td><td>{'waits ' + told if told else ''}</td></tr>"
        )
    head = f"<div style='opacity:.75'>the last {WINDOW:.0f} seconds</div>"
    return f"{head}<table style='font-size:13px;line-height:1.6'>{''.join(rows)}</table>" if rows else ""


def phase(
    rows: Sequence[Row], plan: Plan, *, epochs: int, minibatches: int | None, running: bool
) -> tuple[str, int, int]:
    """(what the job is at and how long it still takes, minibatches done, minibatches in all; 0: not known yet)."""
    done = max((row["minibatch"] + 1 for row in rows if row["event"] == "step"), default=0)
    ended = [row for row in rows if row["event"] == "epoch"]
    per_epoch = ended[0].get("minibatches", 0) if ended else 0
    total = minibatches or per_epoch * epochs
    if not done:
        return "setting up: processes start, meet, and read their data", 0, total
    if not running:
        return f"{done} minibatches done", done, max(total, done)
    if not ended:
        warm = f"warm-up of {len(plan.stages)} stages, " if done < 2 * len(plan.ranks) else ""
        return f"{warm}epoch 1 of {epochs}, minibatch {done}", done, total
    pace = (rows[-1]["seconds"] - ended[0]["seconds"]) / max(done - per_epoch, 1) if done > per_epoch else None
    pace = pace or ended[0]["seconds"] / per_epoch
    left = max(0.0, pace * (total - done))
    epoch = min(len(ended) + 1, epochs)
    return f"epoch {epoch} of {epochs}, minibatch {done} of {total}, about {left:.0f} s left", done, total


def learned(rows: Sequence[Row]) -> str:
    """The newest loss, accuracy and pace in words."""
    steps = [row for row in rows if row["event"] == "step"]
    epochs = [row for row in rows if row["event"] == "epoch"]
    told = []
    if steps and steps[-1].get("loss") is not None:
        recent = [row["loss"] for row in steps[-20:]]
        told.append(f"loss {sum(recent) / len(recent):.3f}")
    if epochs:
        accuracy = (epochs[-1].get("validation") or {}).get("accuracy")
        told += [f"validation accuracy {accuracy:.1%}"] if accuracy is not None else []
        told.append(f"{epochs[-1]['samples_per_second']:,.0f} samples/s")
    return ", ".join(told)


def log_of(folder: Path, rank: int) -> str:
    """The end of a rank's log as HTML; a sentence where there is none yet."""
    path = folder / "logs" / f"rank{rank}.log"
    if not path.exists():
        return f"<i>rank {rank} has written no log yet</i>"
    lines = _tail(path).decode(errors="replace").splitlines()[-_LOG_LINES:]
    text = html.escape("\n".join(lines)) or "(empty)"
    return f"<pre style='max-height:220px;overflow:auto;font-size:12px;margin:2px 0'>{text}</pre>"


def _peer(rank: int) -> str:
    return f"rank {rank}" if rank >= 0 else "the others"


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """The last whole rows of a file that another process writes; a torn line is left out."""
    rows = []
    for line in _tail(path).splitlines()[1:]:  # the first may be cut off
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _tail(path: Path) -> bytes:
    with path.open("rb") as handle:
        handle.seek(0, 2)
        size = handle.tell()
        handle.seek(max(0, size - _TAIL))
        data = handle.read()
    return data if size > _TAIL else b"\n" + data
