"""Figures: functions from values to plotly figures. Each has a sibling `<name>_table`, which returns the data drawn."""

from .accuracy import accuracy, accuracy_table
from .anatomy import anatomy, anatomy_table
from .cells import as_wide_as_the_page
from .chromium import NoPicture, browser, close_browser
from .clouds import clouds, clouds_table, voxel_counts, voxel_counts_table
from .compare import compare, compare_table
from .compression import compression, compression_table
from .cuts import cut_bytes, cut_bytes_table
from .distances import distances, distances_table
from .epochs import epoch_trace, working_epoch
from .export import export, keep_pictures
from .gaps import Gap, gaps, gaps_table
from .groups import groups, groups_table
from .held_against import HeldAgainst, contradictions, held_against, held_against_table
from .iteration_times import iteration_times, iteration_times_table
from .layer_costs import layer_costs, layer_costs_table
from .layer_graph import cuts_table, layer_graph, layer_graph_table
from .learning_curves import learning_curves, learning_curves_table
from .losses import losses, losses_table
from .lost_seconds import lost_seconds, lost_seconds_table
from .mixes import mixes, mixes_table
from .orders import OrderedEpoch, orders, orders_table
from .outcomes import Outcome, outcomes_table
from .paper import COLUMN_WIDTHS, Paper
from .points import Point, points_table
from .progress import progress, progress_table
from .scaling import scaling, scaling_table
from .sparse_dense import sparse_dense, sparse_dense_table
from .speedups import speedups, speedups_table
from .stages import stages, stages_table
from .system_bars import SystemBar, system_bars, system_bars_table
from .tasks import tasks, tasks_table
from .throughput import throughput, throughput_table
from .time_by_size import time_by_size, time_by_size_table
from .timeline import timeline, timeline_table
from .trace_page import trace_page, write_trace
from .trade_off import trade_off, trade_off_table
from .traffic import traffic, traffic_table
from .waiting import waiting, waiting_table

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
