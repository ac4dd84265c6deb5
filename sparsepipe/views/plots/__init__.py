"""Figures: functions from values to plotly figures. Each has a sibling `<name>_table`, which returns the data drawn."""

from .accuracy import accuracy, accuracy_table
from .anatomy import anatomy, anatomy_table
from .chromium import NoPicture, browser, close_browser
from .data_sent import compression, compression_table, traffic, traffic_table
from .export import as_wide_as_the_page, export, keep_pictures
from .held_against import HeldAgainst, contradictions, held_against, held_against_table
from .layer_costs import (
    cut_bytes,
    cut_bytes_table,
    layer_costs,
    layer_costs_table,
    sparse_dense,
    sparse_dense_table,
    time_by_size,
    time_by_size_table,
)
from .layer_graph import cuts_table, layer_graph, layer_graph_table
from .learning import (
    learning_curves,
    learning_curves_table,
    progress,
    progress_table,
    tasks,
    tasks_table,
    trade_off,
    trade_off_table,
)
from .outcomes import Outcome, losses, losses_table, outcomes_table
from .paper import COLUMN_WIDTHS, Paper
from .plans import Gap, gaps, gaps_table, groups, groups_table, mixes, mixes_table, stages, stages_table
from .run_times import iteration_times, iteration_times_table, lost_seconds, lost_seconds_table, waiting, waiting_table
from .sample_sizes import (
    OrderedEpoch,
    clouds,
    clouds_table,
    distances,
    distances_table,
    orders,
    orders_table,
    voxel_counts,
    voxel_counts_table,
)
from .speeds import compare, compare_table, scaling, scaling_table, speedups, speedups_table
from .system_bars import SystemBar, system_bars, system_bars_table
from .table import Point, points_table
from .throughput import throughput, throughput_table
from .timeline import epoch_trace, timeline, timeline_table, trace_page, working_epoch, write_trace

__all__ = [
    "as_wide_as_the_page",
    "anatomy",
    "anatomy_table",
    "mixes",
    "mixes_table",
    "NoPicture",
    "Paper",
    "Point",
    "points_table",
    "scaling",
    "scaling_table",
    "sparse_dense",
    "sparse_dense_table",
    "trade_off",
    "trade_off_table",
    "traffic",
    "traffic_table",
    "accuracy",
    "accuracy_table",
    "clouds",
    "clouds_table",
    "browser",
    "COLUMN_WIDTHS",
    "close_browser",
    "compare",
    "compare_table",
    "compression",
    "compression_table",
    "contradictions",
    "cut_bytes",
    "cut_bytes_table",
    "cuts_table",
    "distances",
    "distances_table",
    "epoch_trace",
    "export",
    "keep_pictures",
    "Gap",
    "gaps",
    "gaps_table",
    "groups",
    "groups_table",
    "HeldAgainst",
    "held_against",
    "held_against_table",
    "iteration_times",
    "iteration_times_table",
    "layer_costs",
    "layer_costs_table",
    "layer_graph",
    "layer_graph_table",
    "learning_curves",
    "learning_curves_table",
    "losses",
    "losses_table",
    "lost_seconds",
    "lost_seconds_table",
    "OrderedEpoch",
    "orders",
    "orders_table",
    "Outcome",
    "outcomes_table",
    "progress",
    "progress_table",
    "speedups",
    "speedups_table",
    "stages",
    "stages_table",
    "SystemBar",
    "system_bars",
    "system_bars_table",
    "tasks",
    "tasks_table",
    "throughput",
    "throughput_table",
    "time_by_size",
    "time_by_size_table",
    "timeline",
    "timeline_table",
    "trace_page",
    "voxel_counts",
    "voxel_counts_table",
    "waiting",
    "waiting_table",
    "working_epoch",
    "write_trace",
]
