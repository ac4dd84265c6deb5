"""The partition explorer as one page for a supplement or a talk: it needs neither a kernel nor the network.

The plans of a grid of settings are computed beforehand: device counts × bandwidth of a link × schedule. The page draws
them with the explorer's own code (partition_view.js) and has sliders that choose among them.
"""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path

from ...errors import InputError
from ...util.io.files import expanded, write_atomic
from ...util.io.quantities import BANDWIDTH
from ...util.text.numbers import number_of
from ...values.cluster import Cluster
from ...values.schedule_rules import SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES
from ..markup import Html
from .looks import page_code
from .partition_view import PARTS, drawn_text, graph_text
from .picture import picture
from .planning import Planning
from .settings import Settings, map_of
from .view_model import PALETTE

MOST_BYTES = 5_000_000
PAGE_MINIBATCHES = 12  # of a timeline: its spans are most of a page's bytes
_MOST_COUNTS = 40  # combinations of device counts, unless they are given
_FACTORS = (1 / 8, 1.0, 8.0)  # of the link's bandwidth
_UNLIMITED = (1e8, 1e9, float("inf"))  # for a link without a limit
_MICROBATCHES = 8  # of a schedule that has steps, if the explorer shows one without
_HINT = "in network order, height proportional to time"
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"

_STYLE = """
:root{color-scheme:light dark}
body{margin:16px;font:13px/1.45 system-ui,sans-serif;background:var(--jp-layout-color0,#fff);
  color:var(--jp-ui-font-color1,#222)}
@media (prefers-color-scheme:dark){:root{--jp-layout-color0:#111;--jp-layout-color1:#1c1c1c;--jp-layout-color2:#2c2c2c;
  --jp-ui-font-color1:#e6e6e6;--jp-ui-font-color2:#aaa;--jp-border-color1:#666;--jp-border-color2:#444;--jp-brand-color1:#64b5f6}}
.sp-explorer>.sp-grid{grid-template-columns:minmax(250px,300px) minmax(0,1fr);
  grid-template-areas:"head head" "tiles tiles" "map picture" "controls picture";grid-template-rows:auto auto auto 1fr}
.sp-header{display:flex;gap:12px;flex-wrap:wrap}
.sp-candidates,.sp-view .sp-step{display:none}
#sp-controls{display:flex;flex-direction:column;gap:6px}
#sp-controls label{display:grid;grid-template-columns:112px minmax(0,1fr) 76px;gap:8px;align-items:center}
#sp-controls select{grid-column:2/4}
#sp-refusal:not(:empty){border-left:4px solid #D55E00;padding-left:6px;font-weight:600}
@container (max-width:640px){.sp-explorer>.sp-grid{grid-template-columns:minmax(0,1fr);
  grid-template-areas:"head" "tiles" "controls" "map" "picture";grid-template-rows:none}}
"""
_PAGE = Html(
    "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
    "<meta http-equiv='Content-Security-Policy' content=\"{policy}\"><title>{title}</title>"
    "<style>{style}</style></head><body><div class='sp-explorer'><div class='sp-grid'>"
    "<div class='sp-header'><b class='sp-title'>{title}</b>"
    "<span>{about}</span></div><div id='sp-explorer-view'></div><div class='sp-controls'><div id='sp-controls'></div>"
    "<div id='sp-refusal' role='alert'></div></div></div></div>"
    "<script type='text/plain' id='sp-plans'>{plans}</script><script type='module'>{code}</script></body></html>\n"
)


@dataclass(frozen=True)
class PageGrid:
    """The settings that a page moves: device counts by type, bandwidths in bytes/s, schedules."""

    counts: Mapping[str, Sequence[int]]
    bandwidths: Sequence[float]
    schedules: Sequence[str]

    @classmethod
    def around(
        cls,
        settings: Settings,
        cluster: Cluster,
        *,
        counts: Mapping[str, Sequence[int]] | None = None,
        bandwidths: Sequence[float] | None = None,
        schedules: Sequence[str] | None = None,
    ) -> "PageGrid":
        """Return a grid with the settings in it. Raises InputError for a device type or schedule that is unknown."""
        present = dict(settings.devices)
        if unknown := {*(counts or ())} - present.keys():
            raise InputError(
                "explorer.page_type", f"counts of {min(unknown)!r}: expected {', '.join(present)}", name=min(unknown)
            )
        if unknown := {*(schedules or ())} - SCHEDULE_RULES.keys():
            raise InputError(
                "explorer.page_schedule",
                f"schedule {min(unknown)!r}: expected {', '.join(SCHEDULE_RULES)}",
                name=min(unknown),
            )
        link = _bandwidth(settings, cluster)
        around_link = [link * factor for factor in _FACTORS] if link < float("inf") else _UNLIMITED
        fitting = [
            name
            for name, rules in SCHEDULE_RULES.items()
            if not rules.check_stages_per_rank(settings.stages_per_device)
        ]
        given = {name: (counts or {}).get(name, ()) for name in present}
        usual = _counts(present) if not counts else {name: (present[name],) for name in present}
        return cls(
            {name: sorted({present[name], *(given[name] or usual[name])}) for name in present},
            sorted({link, *(bandwidths or around_link)}),
            list(dict.fromkeys([*(schedules or fitting), settings.schedule])),
        )

    @property
    def size(self) -> int:
        """Number of plans."""
        return prod(map(len, self.counts.values())) * len(self.bandwidths) * len(self.schedules)


def _counts(present: Mapping[str, int]) -> dict[str, list[int]]:
    """Device counts from none to a few more than there are; of many the powers of two."""
    counts = {name: list(range(count + 1)) for name, count in present.items()}
    if prod(map(len, counts.values())) > _MOST_COUNTS:
        return {name: sorted({0, count, *(2**k for k in range(count.bit_length()))}) for name, count in present.items()}
    while True:
        name = min(counts, key=lambda each: len(counts[each]))
        if prod(map(len, counts.values())) // len(counts[name]) * (len(counts[name]) + 1) > _MOST_COUNTS:
            return counts
        counts[name].append(counts[name][-1] + 1)
        if len(counts[name]) > 2 * max(present.values()) + 4:
            return counts


def _bandwidth(settings: Settings, cluster: Cluster) -> float:
    """The bandwidth that the page moves: between nodes, or within the only one."""
    if len(cluster.nodes) > 1:
        return settings.network_bandwidth
    return settings.bandwidth if settings.bandwidth is not None else cluster.nodes[0].link.bandwidth


def _settings_of(
    settings: Settings, cluster: Cluster, counts: Mapping[str, int], link: float, schedule: str
) -> Settings:
    """The settings of one plan: those on screen, or others of the grid by the planner."""
    if counts == dict(settings.devices) and link == _bandwidth(settings, cluster) and schedule == settings.schedule:
        return settings
    rules = SCHEDULE_RULES[schedule]
    weights = settings.weights if settings.weights in rules.weights else WEIGHT_POLICIES[schedule][0]
    by_steps = WEIGHT_RULES[weights].updates_by_step
    steps = (settings.num_microbatches if settings.num_microbatches > 1 else _MICROBATCHES) if by_steps else 1
    hosts = settings.hosts if counts == dict(settings.devices) else None
    between = len(cluster.nodes) > 1
    return replace(
        settings,
        devices=tuple(counts.items()),
        schedule=schedule,
        weights=weights,
        num_microbatches=steps,
        cuts=None,
        stage_devices=None,
        hosts=hosts,
        bandwidth=settings.bandwidth if between else link,
        network_bandwidth=link if between else settings.network_bandwidth,
    )


def explorer_page(planning: Planning, settings: Settings, grid: PageGrid, *, note: str) -> str:
    """Return the page. `planning` is used by nothing else meanwhile. Raises InputError if it is above MOST_BYTES."""
    cluster, batch_size = planning.cluster, settings.batch_size or planning.profile.batch_size
    scenes, maps, reasons = dict[str, int](), dict[str, int](), dict[str, int]()
    cells = []
    for numbers, link, schedule in product(product(*grid.counts.values()), grid.bandwidths, grid.schedules):
        counts = dict(zip(grid.counts, numbers, strict=True))
        chosen = _settings_of(settings, cluster, counts, link, schedule)
        cell = [-1, maps.setdefault(json.dumps(map_of(cluster, chosen)), len(maps)), -1]
        try:
            answer = planning.answer(chosen)
        except InputError as error:
            cell[2] = reasons.setdefault(str(error), len(reasons))
        else:
            scene = picture(answer, None, batch_size=batch_size, note=note, sliders={})
            scene |= {
                "cuts": {"at": [], "movable": False, "kept": False, "blocked": [], "reasons": []},
                "hint": _HINT,
                "try": None,
            }
            text = drawn_text(scene | {"sized": False, "serial": 0})
            cell[0] = scenes.setdefault(text, len(scenes))
        cells.append(cell)
    document = {
        "graph": graph_text(planning.profile),
        "palette": PALETTE,
        "controls": _controls(settings, cluster, grid),
        "scenes": list(scenes),
        "maps": list(maps),
        "reasons": list(reasons),
        "cells": cells,
    }
    packed = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)
    drawing = page_code(*PARTS)
    style = Path(__file__).with_name("explorer.css").read_text(encoding="utf-8") + _STYLE
    page = _PAGE.format(
        policy=_POLICY,
        title=str(planning.profile.origin.get("model") or number_of(len(planning.profile.graph.layers), "layer")),
        style=Html(style),
        about=" · ".join(filter(None, [note, f"{number_of(len(scenes), 'plan')} computed beforehand"])),
        plans=base64.b64encode(packed).decode(),
        code=Html(drawing + page_code("explorer_page")),
    )
    if len(page) > MOST_BYTES:
        raise InputError(
            "explorer.page_too_large",
            f"the page of {grid.size} plans has {len(page) / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:g}: "
            "give fewer counts, bandwidths or schedules",
            size=len(page),
        )
    return str(page)


def _controls(settings: Settings, cluster: Cluster, grid: PageGrid) -> list[dict[str, object]]:
    """The controls in the order of `product`, each with its stops as text and the number of the present one."""
    present = dict(settings.devices)
    link = "between nodes" if len(cluster.nodes) > 1 else "within a node"
    controls: list[dict[str, object]] = [
        {
            "name": name,
            "tip": f"number of {name} devices",
            "stops": [*map(str, counts)],
            "given": counts.index(present[name]),
        }
        for name, counts in grid.counts.items()
    ]
    stops = [BANDWIDTH.shown(bandwidth) for bandwidth in grid.bandwidths]
    given = list(grid.bandwidths).index(_bandwidth(settings, cluster))
    controls.append({"name": link, "tip": f"bandwidth {link}", "stops": stops, "given": given})
    schedules = list(grid.schedules)
    given = schedules.index(settings.schedule)
    controls.append({"name": "schedule", "tip": "pipeline schedule", "stops": schedules, "given": given, "list": True})
    return controls


def write_page(page: str, path: Path | str) -> Path:
    """Write the page; returns its path. Raises InputError if it cannot be written."""
    target = expanded(path)
    try:
        write_atomic(target, page)
    except OSError as error:
        raise InputError(
            "out.unwritable", f"{target}: cannot be written ({error.strerror or error}); choose another folder"
        ) from None
    return target
