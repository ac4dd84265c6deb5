"""The document as tables: medians, quartiles in brackets."""

from collections.abc import Mapping
from typing import Any

TARGETS = {
    "step_minkowski_over_native": 1.5,
    "convolution_over_products": 1.3,
    "kernel_map_share": 0.1,
    "memory_native_over_minkowski": 1.0,
}


def tables(document: Mapping[str, Any]) -> str:
    """Return a table for each number of threads, and one of memory."""
    lines: list[str] = []

    def cell(value: Mapping[str, Any]) -> str:
        low, high = value["quartiles"]
        return f"{value['median']:.2f} [{low:.2f}, {high:.2f}]"

    load = ", ".join(f"{value:.1f}" for value in document["load_average_after"])
    lines.append(f"{document['device']}, {document['processors']} processors, load {load}, {document['rounds']} rounds")
    for count, part in document["threads"].items():
        lines.append(f"\n{count} threads")
        for name, origin in part["clouds"].items():
            lines.append(f"  {name}: {origin}")
        for name, step in part["steps"].items():
            lines.append(f"  {name}, {step['voxels']} voxels, load {step['load_average']:.1f}")
            for engine_name, seconds in step["seconds"].items():
                sgd = f", with SGD {cell(seconds['step_with_sgd'])} s" if "step_with_sgd" in seconds else ""
                lines.append(f"    {engine_name:18} step {cell(seconds['step'])} s{sgd}")
            for key, value in step.items():
                if key not in ("voxels", "seconds", "load_average"):
                    lines.append(f"    {key:36} {cell(value)}   of the least {value['least']:.2f}")
        for name, found in part["convolutions"].items():
            each = {key: value["convolution_over_products"] for key, value in found["each"].items()}
            worst = max(each, key=lambda key: each[key]["median"])
            total = found["sum_over_products"]
            least = f"of the least {total['least']:.2f}"
            lines.append(f"  convolutions of {name}: {cell(total)} x their products, {least};")
            lines.append(f"    most: {worst} {cell(each[worst])}")
            within = sum(value["median"] <= TARGETS["convolution_over_products"] for value in each.values())
            lines.append(f"    within {TARGETS['convolution_over_products']}: {within} of {len(each)}")
            lines.append(f"    {cell(found['sum_over_products_and_moves'])} x products and moves")
            if "sum_over_products_onednn" in found:
                lines.append(f"    {cell(found['sum_over_products_onednn'])} x oneDNN's products")
    lines.append("\npeak memory, MiB")
    for name, own in document["memory"].items():
        peaks = (f"{engine_name} {value['median'] / 2**20:.0f}" for engine_name, value in own["bytes"].items())
        over = f", native_over_minkowski {cell(own['native_over_minkowski'])}" if "native_over_minkowski" in own else ""
        lines.append(f"  {name}: {', '.join(peaks)}{over}")
    return "\n".join(lines)
