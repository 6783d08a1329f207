"""The server of HTTP: uvicorn's, with limits on heads of requests, connections, and idle clients.

Only a server imports this module, since it needs uvicorn and httptools."""

import contextlib

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Limits of the time and the bytes of a request's head.
_SECONDS_FOR_HEAD, _MOST_HEAD_BYTES = 10.0, 2**16
# After so long without reading anything of its answers a client is left.
_SECONDS_TO_READ = 30.0
_MOST_CONNECTIONS = 10_000


class _Parser(httptools.HttpRequestParser):
    """A parser that reads a request without its offer of another protocol, such as h2c.

    httptools' own loses the body of such a request.
    """

    def __init__(self, connection):
        super().__init__(connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn's.
        self._connection = connection

    def feed_data(self, data):
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.get_method() == b"CONNECT":
                raise httptools.HttpParserError("There is no tunnel.") from None
            self._connection.read_again(data[upgrade.args[0] :])


class _Connection(HttpToolsProtocol):
    """A connection that is closed if no head of a request arrives, or a too long one.

    uvicorn's own waits for a head without a limit, and keeps all its bytes.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._closing, self._head_bytes = None, 0
        self._unread, self._read_at = 0, 0.0
        self.parser = _Parser(self)

    def read_again(self, body):
        """Reads a request again without the offer, and what came behind its head."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        head = [method, b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() != b"upgrade")
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.parser = _Parser(self)
        self.parser.feed_data(b"".join([*head, b"\r\n", body]))

    def _expect_head(self):
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered and self._closing is None:
            self._closing = self.loop.call_later(_SECONDS_FOR_HEAD, self.transport.close)

    def _has_head(self):
        self._head_bytes = 0
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def connection_made(self, transport):
        super().connection_made(transport)
        self._expect_head()
        if len(self.connections) > self.config.limit_connections:
            transport.abort()

    def check_progress(self):
        """Ends the connection of a client that has read nothing for some time."""
        unread, now = self.transport.get_write_buffer_size(), self.loop.time()
        if not unread or unread < self._unread or not self._unread:
            self._read_at = now
        self._unread = unread
        if now - self._read_at > _SECONDS_TO_READ:
            self.transport.abort()

    def connection_lost(self, exc):
        self._has_head()
        super().connection_lost(exc)

    def data_received(self, data):
        self._head_bytes += len(data)
        super().data_received(data)
        self._expect_head()
        if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_header(self, name, value):
        super().on_header(name, value.strip(b" \t"))  # Space around a value is none of it.

    def on_headers_complete(self):
        if not self.parser.should_upgrade():  # Else it is read again.
            self._has_head()
            super().on_headers_complete()

    def on_message_complete(self):
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_body(self, body):
        self._head_bytes = 0
        super().on_body(body)


class _Http(uvicorn.Server):
    """Leaves signals to `kformer.serving.run.Server`."""

    def capture_signals(self):
        return contextlib.nullcontext()

    async def on_tick(self, counter):
        if counter % 10 == 0:  # Once a second.
            for connection in list(self.server_state.connections):
                connection.check_progress()
        return await super().on_tick(counter)


def _most_connections():
    """The most connections at the same time: models and logs need descriptors of files, too."""
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return _MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_limited = files != resource.RLIM_INFINITY
    return min(_MOST_CONNECTIONS, files * 3 // 4) if is_limited else _MOST_CONNECTIONS


def make_http_server(app, backlog):
    """Makes the server.

    Args:
        app: ASGI application.
        backlog: int. Connections that wait to be accepted.

    Returns:
        `uvicorn.Server`. The seconds for the replies in flight at its end are its
        `config.timeout_graceful_shutdown`.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=_Connection,
        backlog=backlog,
        timeout_graceful_shutdown=1,
    )
    config.limit_connections = _most_connections()
    return _Http(config)
