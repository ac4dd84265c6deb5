"""An extension of Jupyter's server: what a kernel says goes to the page at once.

The server leaves Nagle's algorithm on: a small message waits until the page's machine has acknowledged the one before,
and a machine puts that off for 40 ms. A kernel says that it is busy before it answers a slider, so every answer waited.

scripts/jupyterlab/jupyter_server_config.d/sparsepipe.json turns it on: scripts/lab.sh reads that, a wheel installs it.
"""

from typing import Any


def undelayed(connection: type[Any]) -> type[Any]:
    """Return a kind of connection between a kernel and a page, after `connection`, whose messages never wait."""

    def connect(self: Any) -> Any:
        self.websocket_handler.set_nodelay(True)
        return connection.connect(self)

    return type(connection.__name__, (connection,), {"connect": connect})


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Called by Jupyter's server, before any page opens a connection."""
    settings = server.web_app.settings
    settings["kernel_websocket_connection_class"] = undelayed(settings["kernel_websocket_connection_class"])
