"""What Jupyter's server does for widgets: a kernel's messages do not wait for each other on their way to the page."""

import asyncio
import json
import socket
from pathlib import Path

from jupyter_server.extension.config import ExtensionConfigManager
from tornado.httpserver import HTTPServer
from tornado.web import Application
from tornado.websocket import WebSocketHandler, websocket_connect

from sparsepipe import lab_server

SETTINGS = Path(__file__).parent.parent / "scripts" / "jupyterlab"


class Connection:
    """As the server's own, as far as it matters here: it is told the page's socket, and to connect."""

    def __init__(self, websocket_handler):
        self.websocket_handler = websocket_handler

    async def connect(self):
        stream = self.websocket_handler.ws_connection.stream
        told = {"nodelay": stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)}
        await self.websocket_handler.write_message(json.dumps(told))


class Page(WebSocketHandler):
    async def open(self):
        await self.settings["kernel_websocket_connection_class"](websocket_handler=self).connect()


def asked(extend) -> int:
    """What the socket of a page's connection says of Nagle's algorithm, in a server that `extend` was called with."""

    async def ask():
        application = Application([("/", Page)], kernel_websocket_connection_class=Connection)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = HTTPServer(application)
            listening.setblocking(False)
            server.add_socket(listening)
            server.web_app = application
            extend(server)
            page = await websocket_connect(f"ws://127.0.0.1:{listening.getsockname()[1]}/")
            told = json.loads(await page.read_message())
            page.close()
            server.stop()
            return told["nodelay"]

    return asyncio.run(ask())


def test_messages_go_to_the_page_at_once():
    assert asked(lambda server: None) == 0  # what a server does by itself
    assert asked(lab_server._load_jupyter_server_extension) == 1


def test_lab_sh_and_a_wheel_turn_it_on():
    (point,) = lab_server._jupyter_server_extension_points()
    found = ExtensionConfigManager(read_config_path=[str(SETTINGS)]).get_jpserver_extensions()
    assert found == {point["module"]: True}
