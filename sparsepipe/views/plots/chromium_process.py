"""The process that draws figures with Chromium; chromium.py starts it, sends it requests, and ends it.

It is run as a file, without the rest of this package: `python chromium_process.py BROWSER`. A request is one line of
JSON on stdin, an answer one on stdout: {} when something is done, {"error": why} when nothing more will be. It leads a
process group in which the browser stays, and ends with all of it as soon as stdin closes.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LOOK = 0.1  # seconds between two looks at whether the browser is alive


def main(browser: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)  # so that `_end_all` can send it to the others
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints goes elsewhere
    os.dup2(2, 1)

    def answer(**told: str) -> None:
        print(json.dumps(told), file=answers, flush=True)

    try:
        asyncio.run(_serve(browser, answer))
    except BaseException as error:  # noqa: BLE001 - whatever it is, who asked must hear of it
        answer(error=" ".join(f"{error}".split()) or type(error).__name__)
    _end_all()


async def _serve(browser: str, answer: Any) -> None:
    from choreographer.browsers.chromium import Chromium
    from kaleido import Kaleido

    class InThisGroup(Chromium):
        def get_popen_args(self) -> Mapping[str, Any]:
            return {**super().get_popen_args(), "start_new_session": False}

    asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    threading.Thread(target=_read, args=(asyncio.get_running_loop(), asked), daemon=True).start()
    drawing = Kaleido(n=1, timeout=None, path=browser, browser_cls=InThisGroup)
    death = asyncio.create_task(_ended(drawing))
    await _unless(death, drawing.open())
    answer()
    while True:
        request = await _unless(death, asked.get())
        figure = json.loads(Path(request["figure"]).read_text())
        await _unless(death, drawing.write_fig(figure, request["path"], request["options"], cancel_on_error=True))
        answer()


async def _unless(death: "asyncio.Task[None]", work: Any) -> Any:
    """What `work` gives; raises the error of a browser that ends meanwhile."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
    if death.done():
        task.cancel()
        death.result()
    return task.result()


async def _ended(drawing: object) -> None:
    while not hasattr(drawing, "subprocess") or drawing.subprocess.poll() is None:
        await asyncio.sleep(_LOOK)
    raise RuntimeError("it ended")


def _read(loop: asyncio.AbstractEventLoop, asked: "asyncio.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(asked.put_nowait, json.loads(line))
    _end_all()


def _end_all() -> None:
    """End this process and the browser, whatever either is at."""
    os.killpg(0, signal.SIGTERM)
    threading.Event().wait(0.2)  # a browser that is well puts its files away
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
