"""A server from its start to its end: sockets, models, signals, drain."""

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import pathlib
import re
import signal
import socket
import tempfile
import time

from kformer.export.saved_model.process import run_process
from kformer.serving.ingress.ingress import Ingress
from kformer.serving.interface import AVAILABLE
from kformer.translating.streaming import load_run_translator
from kformer_options.child_process import sigterm_as_interruption
from kformer_options.installed import check_server

# The number of connections that wait to be accepted, and of errors that the event loop has at once
# when it runs out of files, of which one a minute is logged.
BACKLOG = 100
_SAME_ERROR_S = 60.0
_logger = logging.getLogger(__name__)
# The seconds for the last bytes of replies that were ready at the end of the drain.
_LAST_BYTES_S = 0.5
# After a signal the server still accepts requests for a moment, since some are on their way.
_LINGER_S, _MOST_LINGER_S = 0.3, 2.0
_SIGNALS_S = 0.2


def serve(settings, report=print):
    """Serves models until SIGTERM or SIGINT.

    Args:
        settings: `ServerSettings`.
        report: function of a line for the operator, default `print`.

    Raises:
        OSError: a port is taken, or a file cannot be read.
        ValueError: a model cannot be loaded, or a setting is wrong.
        RuntimeError: a run cannot be exported.
        KeyboardInterrupt: a signal came while one was exported.
    """
    settings.check_files()
    check_server(settings.engine, settings.grpc_port)
    with sigterm_as_interruption(), contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(bind(settings.host, settings.port))]
        if settings.grpc_port:  # gRPC binds it itself, once the models are loaded.
            bind(settings.host, settings.grpc_port).close()
        settings = stack.enter_context(with_exported_runs(settings, report))
        asyncio.run(Server(settings, sockets, report).run())


def bind(host, port):
    """Binds a socket for HTTP, and listens: before that another process could bind the port, too.

    Args:
        host: str.
        port: int, 0 for any free one.

    Returns:
        `socket.socket`.

    Raises:
        OSError: the port is taken, or the address is not of this machine.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = addresses[0]
    options = {"family": family, "backlog": BACKLOG}
    if family == socket.AF_INET6:
        options["dualstack_ipv6"] = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(address, **options)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno), f"{host}:{port}") from error


@contextlib.contextmanager
def with_exported_runs(settings, report=print):
    """A context with settings whose models are all as the engine takes them: runs are exported,
    unless PyTorch loads them.

    Args:
        settings: `ServerSettings`.
        report: function of a line for the operator, default `print`.

    Yields:
        `ServerSettings`.

    Raises:
        RuntimeError: a run cannot be exported.
    """
    if settings.engine == "torch":
        yield settings
        return
    with contextlib.ExitStack() as stack:
        models = []
        for model in settings.models:
            if model.is_run:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kformer-"))
                folder = pathlib.Path(folder) / model.name
                dtype = model.dtype or settings.dtype
                kind = f" in {dtype}" if dtype else ""
                report(f"{model.name}: {model.path} is a run, so it is exported first{kind}.")
                options = {"dtype": dtype} if dtype else {}
                try:
                    if settings.engine == "ctranslate2":
                        run = load_run_translator(model.path)
                        run.export(folder, format="ctranslate2", **options)
                    else:  # In a process of its own, whose memory is free afterwards.
                        run_process("run", model.path, folder, {"imports": [], **options})
                except (RuntimeError, ValueError) as error:
                    reason = re.sub(r"^[\w.]+: ", "", str(error))  # Without the exception's name.
                    message = f"{model.path} cannot be exported: {reason}"
                    raise RuntimeError(message) from None
                model = dataclasses.replace(model, path=folder, dtype=None)
            models.append(model)
        # The exports have the dtype now, and take none.
        yield dataclasses.replace(settings, models=tuple(models), dtype=None)


def make_engine(settings):
    """Makes the engine that the settings name.

    Args:
        settings: `ServerSettings`.

    Returns:
        `Engine`.
    """
    if settings.engine == "ray":
        from kformer.serving.engine_ray import RayEngine

        return RayEngine(settings)
    from kformer.serving.engine_local import LocalEngine

    return LocalEngine(settings)


class Server:
    """One server: HTTP listens at once, and is ready when the models are.

    Args:
        settings: `ServerSettings`, whose models are as the engine takes them.
        sockets: list of bound sockets for HTTP.
        report: function of a line for the operator, default `print`.

    Attributes:
        ingress: `Ingress`.
        http: `uvicorn.Server`.
        grpc_port: int. The port of gRPC, or `None`.
    """

    def __init__(self, settings, sockets, report=print):
        self._settings, self._sockets, self._report = settings, sockets, report
        self.ingress = self.grpc_port = self.http = self._ending = None
        self._silent_until = 0.0

    def end(self):
        """Begins the end of the server, as SIGTERM does."""
        self._ending.set()

    async def run(self):
        """Serves until a signal, then drains.

        Raises:
            Exception: the models cannot be loaded, or a port is taken.
        """
        from kformer.serving.ingress.app import make_app
        from kformer.serving.ingress.http_server import make_http_server

        self._ending = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(self._log_error)
        engine = make_engine(self._settings)
        self.ingress = Ingress(engine, self._settings)
        self.http = http = make_http_server(make_app(self.ingress), BACKLOG)
        serving = asyncio.create_task(http.serve(sockets=self._sockets))
        grpc_server, starting = None, asyncio.create_task(engine.start())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await self._until_one_is_done(starting, serving, ending)
            if starting.done() and not serving.done():
                starting.result()
                grpc_server = await self._start_grpc()
                self.ingress.is_started = True
                self._report_ready(engine)
                await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()  # It raises what has ended HTTP.
            end = time.monotonic() + self._settings.drain_s
            await self._drain(engine, grpc_server, end)
            http.config.timeout_graceful_shutdown = max(_LAST_BYTES_S, end - time.monotonic())
        finally:
            for task in (ending, starting):
                task.cancel()
            http.should_exit = True
            await asyncio.gather(serving, starting, ending, return_exceptions=True)
            await engine.close()

    async def _until_one_is_done(self, *tasks):
        """Waits for a task, and installs signal handlers repeatedly: Ray's start replaces them."""
        loop, done = asyncio.get_running_loop(), ()
        while True:
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.add_signal_handler(number, self.end)
            if done:
                return
            done, _ = await asyncio.wait(
                tasks, timeout=_SIGNALS_S, return_when=asyncio.FIRST_COMPLETED
            )

    async def _start_grpc(self):
        port = self._settings.grpc_port
        if port is None:
            return None
        from kformer.serving.ingress.grpc_server import make_server

        server, host = make_server(self.ingress), self._settings.host
        address = f"[{host}]" if ":" in host else host
        try:
            self.grpc_port = server.add_insecure_port(f"{address}:{port}")
        except RuntimeError as error:
            message = f"The gRPC port {port} of {host} is taken: give another --grpc-port."
            raise OSError(message) from error
        await server.start()
        return server

    def _report_ready(self, engine):
        host, port = self._sockets[0].getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        for name, versions in engine.models().items():
            for one in versions:
                if one.state == AVAILABLE:
                    kind = f", {one.dtype}" if one.dtype else ""
                    self._report(f"{name}: version {one.version}{kind}")
        if self.grpc_port:
            self._report(f"gRPC on {host}:{self.grpc_port}")
        self._report(f"Ready on http://{host}:{port}")

    def _log_error(self, loop, context):
        """Logs an error of the event loop; that there are no more files at most once a minute."""
        if getattr(context.get("exception"), "errno", None) not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + _SAME_ERROR_S
            message = "the server has no more file descriptors, so clients wait: raise ulimit -n"
            _logger.error(message)

    async def _drain(self, engine, grpc_server, end):
        """Answers what is in flight, until `end` of `time.monotonic()` at most."""
        if self.ingress.is_started:
            self.ingress.is_started = False  # No longer ready, but it still answers.
            await self._linger()
        seconds = max(0.0, end - time.monotonic())

        async def drain_models():
            # Documents first: a model does not know one between two requests.
            await self.ingress.drain(seconds)
            await engine.drain(max(0.0, end - time.monotonic()))

        closing = [drain_models()]
        if grpc_server is not None:
            closing.append(grpc_server.stop(seconds))
        await asyncio.gather(*closing)

    async def _linger(self):
        """Waits until no request has arrived for a moment, so that none on its way is lost."""
        begin = time.monotonic()
        while True:
            now = time.monotonic()
            is_quiet = now - max(begin, self.ingress.last_arrival) >= _LINGER_S
            if is_quiet or now - begin >= min(_MOST_LINGER_S, self._settings.drain_s):
                return
            await asyncio.sleep(_LINGER_S / 6)
