"""Effect of a synchronization scheme and a straggler: a sentence, a table of waiting, and figures."""

from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

from ...planning.simulator import PipelinePace, PipelinesForecast
from ...util.text.numbers import as_measured, number_of, rate_text
from ...values.replication import rule_text
from .. import plots
from ..markup import Html, joined
from ..plots.marks import width_of
from ..plots.outcomes import NOBODY, rule_color
from ..plots.run_times import CAUSES
from ..plots.theme import INK
from . import looks
from .exporter import Figures
from .html_view import HtmlView, scrolled
from .looks import sentence
from .plan_picture import GAP, RED, TEXT, Sheet
from .plot_view import PlotView

_TABLE = Html("<table style='font-size:13px;line-height:1.6;text-align:left'><tr>{}</tr>{}</table>")
_STALE = Html("<div role='status' style='padding:6px 8px;border-left:4px solid #D55E00;font-weight:600'>{}</div>")
_FADED = Html(
    "<style>.sp-faded{filter:grayscale(1);pointer-events:none;"
    "background:repeating-linear-gradient(135deg,transparent 0 14px,#8883 14px 17px)}</style>"
)
_OWN = "Standalone throughput: one pipeline alone with the same straggler"
_SHOWN = Html("{}<div style='opacity:.75;font-size:12px'>{}</div>")
_HEAD, _CELL = Html("<th style='padding-right:12px'>{}</th>"), Html("<td style='padding-right:12px'>{}</td>")
_BAR, _ROW = 13, 19  # pixels: height of a picture's bar, distance of two
_NOTHING = 0.005  # of a pace
_HEADS = ("pipeline", "minibatches", "{}/s", "of standalone", "own delay", "waited", "waited for")


@dataclass(frozen=True)
class Compared:
    """Outcomes of one rule or several, and the simulation of the one that is picked."""

    free: tuple[plots.Outcome, ...]  # of each rule while nobody is slow; none where nobody is slow anyway
    held: tuple[plots.Outcome, ...]  # of each rule under what holds ranks up
    rule: str  # that is picked, as the outcomes call it
    forecast: PipelinesForecast  # of it, under what holds ranks up
    note: str = ""  # of the figures

    @property
    def outcomes(self) -> tuple[plots.Outcome, ...]:
        return (*self.free, *self.held)

    @property
    def picked(self) -> tuple[plots.Outcome, ...]:
        """The outcome of the rule that is picked, under what delays ranks."""
        return tuple(one for one in self.held if one.rule == self.rule)

    @property
    def undisturbed(self) -> float:
        """The pace of that rule while no one is slow."""
        return next(one.samples_per_second for one in self.outcomes if one.rule == self.rule)

    def figures(self) -> Figures:
        """Return (figure, table) by name. Without averages there is none of groups."""
        pace = plots.waiting(self.outcomes, note=self.note), plots.waiting_table(self.outcomes)
        lost = plots.lost_seconds(self.held, note=self.note), plots.lost_seconds_table(self.held)
        found = {"explorer_waiting": pace, "explorer_lost_seconds": lost}
        if any(one.group_sizes or one.staleness for one in self.picked):
            groups = plots.groups(self.picked, note=self.note), plots.groups_table(self.picked)
            found["explorer_groups"] = groups
        return found

    def told(self) -> Html:
        """The pace, what the straggler costs, what waiting costs, and the averages, in a few sentences."""
        pace, own = self.forecast.sum_of_paces, self.forecast.own_pace
        text = Html("<b>{}</b>: {} together").format(
            rule_text(self.forecast.rule), rate_text(pace, self.forecast.counted)
        )
        if self.free:
            free = self.undisturbed
            lost = _as_shown(free) - _as_shown(pace)  # so that a reader who subtracts finds the same
            share = float(lost) / free
            cost = f"{lost:,f} of them ({share:.0%})" if share >= _NOTHING else "almost nothing"
            told = Html("{}, {} without the straggler: the straggler costs {}.")
            text = told.format(text, as_measured(free), cost)
        else:
            text = Html("{}; no straggler.").format(text)
        waiting = _share(own - pace, own) if own - pace >= _NOTHING * own else "almost nothing"
        said = Html("{} Synchronization stalls cost {} of the {} of standalone pipelines; {}.")
        whole = said.format(text, waiting, as_measured(own), _averages(self.forecast))
        return Html("<div style='line-height:1.45;margin:6px 0'>{}</div>").format(whole)


def waiting_picture(compared: Compared, *, stale: str = "") -> str:
    """Return what synchronization schemes cost as SVG: throughput under each straggler, and lost time by cause.

    Args:
        compared: Outcomes of each scheme.
        stale: A sentence on what the picture is of, if its settings have changed since.
    """
    sheet = Sheet()
    if stale:
        sheet.paragraph(stale, color=RED)
    sheet.heading("Synchronization stall", compared.note)
    sheet.paragraph(compared.told().striptags())
    names = list(dict.fromkeys(one.rule for one in compared.outcomes))
    left = max(width_of(name) for name in names) * TEXT * 1.1 + GAP
    for straggler, outcomes in groupby(compared.outcomes, key=lambda one: one.straggler):
        sheet.heading(straggler or NOBODY, "throughput of all pipelines together; dashed: if no pipeline waited")
        _throughputs(sheet, list(outcomes), left, compared)
    if any(one.lost_seconds for one in compared.held):
        causes = [cause for cause in CAUSES if any(cause in one.lost_seconds for one in compared.held)]
        sheet.heading("Lost time", "seconds of all pipelines together")
        sheet.keys([CAUSES[cause] for cause in causes])
        most = max(sum(one.lost_seconds.values()) for one in compared.held) or 1.0
        room = sheet.width - left - 70
        for one in compared.held:
            sheet.words(0, sheet.low + 10, one.rule, bold=one.rule == compared.rule)
            x = left
            for cause in causes:
                wide = one.lost_seconds.get(cause, 0.0) / most * room
                sheet.rect(x, sheet.low, wide, _BAR, CAUSES[cause][1])
                x += wide
            sheet.words(x + 5, sheet.low + 10, f"{as_measured(sum(one.lost_seconds.values()))} s")
            sheet.low += _ROW
    return sheet.drawing(f"throughput of {len(names)} synchronization schemes; {compared.told().striptags()}")[0]


def _throughputs(sheet: Sheet, outcomes: list[plots.Outcome], left: float, compared: Compared) -> None:
    """A bar for each scheme, on one scale in the whole picture."""
    most = max(max(one.samples_per_second, one.own_pace) for one in compared.outcomes) or 1.0
    scale = (sheet.width - left - 120) / most
    for one in outcomes:
        bold = one.rule == compared.rule
        end, alone = (left + pace * scale for pace in (one.samples_per_second, one.own_pace))
        sheet.words(0, sheet.low + 10, one.rule, bold=bold)
        sheet.rect(left, sheet.low, end - left, _BAR, rule_color(one.rule))
        sheet.path(f"{alone:.1f} {sheet.low - 2:.1f}V{sheet.low + _BAR + 2:.1f}", INK, dashed=True)
        rate = f"{as_measured(one.samples_per_second)} {one.counted}/s"
        sheet.words(max(end, alone) + 5, sheet.low + 10, rate, bold=bold)
        sheet.low += _ROW


class WaitingFigures:
    """Shows what was compared; `widget` is what to display, below `stale`, which names an outdated comparison."""

    def __init__(self) -> None:
        self._compared: Compared | None = None
        self._stale = ""
        self.stale, look = HtmlView(), HtmlView(_FADED, layout={"display": "none"})
        self.told, self.waits = HtmlView(), HtmlView()
        self.paces, self.lost, self.groups = PlotView(picture=self._picture), PlotView(), PlotView()
        self.widget = looks.VBox([look, self.told, self.waits, self.paces, self.lost, self.groups])

    def mark(self, stale: str) -> None:
        """Say above the figures what they are of, and look as old; as new without a text."""
        self._stale = sentence(stale)
        self.stale.value = _STALE.format(self._stale) if stale else ""
        self.fade(bool(stale))

    def fade(self, old: bool) -> None:
        """Look as the explorer's picture does while that is old (partition_view.js), or as new again."""
        if old:
            self.widget.add_class("sp-faded")
        else:
            self.widget.remove_class("sp-faded")

    def _picture(self) -> str:
        assert self._compared is not None  # else there is no figure, and nothing asks
        return waiting_picture(self._compared, stale=self._stale)

    def show(self, compared: Compared) -> None:
        self._compared = compared
        figures = compared.figures()
        self.paces.show(figures["explorer_waiting"][0])
        self.lost.show(figures["explorer_lost_seconds"][0])
        looks.show(self.groups, on="explorer_groups" in figures)
        if "explorer_groups" in figures:
            self.groups.show(figures["explorer_groups"][0])
        self.told.value, self.waits.value = compared.told(), waits_table(compared.forecast)


def _as_shown(pace: float) -> Decimal:
    """The number that `as_measured` shows, with its places: a difference of two has as many."""
    return Decimal(f"{pace:.0f}" if abs(pace) >= 1e3 else f"{pace:.2e}")


def part_text(value: float) -> str:
    """The pace of one of several pipelines, in a digit more than that of all: rounded, they still add up to it."""
    return f"{value:,.1f}" if value >= 10 else as_measured(value)


def waits_table(forecast: PipelinesForecast) -> Html:
    """A row for each pipeline: its throughput, its delay, how long it waited, and for which rank."""
    rows = [_row(k, one) for k, one in enumerate(forecast.pipelines)]
    heads = [head.format(forecast.counted) for head in _HEADS]
    columns = [column for column in zip(heads, *rows, strict=True) if any(column[1:])]  # nobody waited: for nobody
    head, *told = zip(*columns, strict=True)
    body = joined(Html("<tr>{}</tr>").format(joined(map(_CELL.format, row))) for row in told)
    table = _TABLE.format(joined(map(_HEAD.format, head)), body)
    return _SHOWN.format(scrolled(table, "waiting between pipelines"), _OWN)


def _row(k: int, one: PipelinePace) -> tuple[str, ...]:
    waited = sum(seconds for _, seconds in one.waits)
    named = sorted(one.waits, key=lambda pair: -pair[1])
    told = ", ".join(f"{name} ({_seconds(seconds)})" for name, seconds in named if seconds >= 0.01 * waited)
    paces = part_text(one.samples_per_second), _share(one.samples_per_second, one.own_pace)
    return (str(k), str(one.minibatches), *paces, _seconds(one.lost_seconds["straggler"]), _seconds(waited), told)


def _averages(forecast: PipelinesForecast) -> str:
    count = sum(forecast.group_sizes.values())
    if not count:
        return "no average yet"
    forced = f", {forecast.forced_merges} of them forced" if forecast.forced_merges else ""
    late = f"applied {forecast.mean_staleness:.1f} updates later" if forecast.staleness else "none taken yet"
    averages = number_of(count, "average")
    return f"{averages}, of {forecast.mean_group_size:.1f} pipelines on average{forced}, {late}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "none"


def _seconds(value: float) -> str:
    return f"{as_measured(value)} s" if value else "–"
