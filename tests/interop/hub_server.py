"""A small model hub on loopback, in the protocol of `huggingface_hub`, with faults on demand."""

import contextlib
import hashlib
import http.server
import json
import threading

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """The files of one model, and what goes wrong when they are asked for.

    Args:
        name: str, the model's name.
        folder: `pathlib.Path` of its files.

    Attributes:
        requests: list of (method, path, header Range) so far.
        breaks: int. So many more downloads of weights break off in their middle.
        lies: bool. Whether weights have other bytes than their digest says, and as many.
        about: bytes or `None`. What it answers about the model instead of the truth.
        headers: dict of the headers that it sends with a file instead of the true ones.
        honest: int. So many more questions about files are answered truly.
        endless: str or `None`. The answer to a GET of a path that holds it goes on and on.
        status: int. The status of that answer.
        sent: int. The bytes of its body that were sent.
    """

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.requests, self.breaks, self.lies = [], 0, False
        self.about, self.headers, self.honest = None, {}, 0
        self.endless, self.status, self.sent = None, 200, 0

    def answer(self, path):
        """The content of a path and the headers beside it, or `None` for a 404."""
        if path.startswith(f"/api/models/{self.name}/revision/"):
            if path.rsplit("/", 1)[1] not in ("main", COMMIT):
                return None
            names = [{"rfilename": file.name} for file in sorted(self.folder.iterdir())]
            about = {"id": self.name, "sha": COMMIT, "siblings": names}
            content = json.dumps(about).encode() if self.about is None else self.about
            return content, {"Content-Type": "application/json"}
        begin = f"/{self.name}/resolve/"
        file = self.folder / path.rsplit("/", 1)[1]
        if not path.startswith(begin) or not file.is_file():
            return None
        content = file.read_bytes()
        if file.suffix == ".safetensors":
            tag = hashlib.sha256(content).hexdigest()
        else:
            tag = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        self.honest -= 1
        return content, headers if self.honest >= 0 else {**headers, **self.headers}


@contextlib.contextmanager
def serving(hub):
    """Serves the hub on loopback; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            given = self.headers.get("Range")
            hub.requests.append((self.command, self.path, given))
            found = hub.answer(self.path)
            if found is None:
                is_model = f"/{hub.name}/" in self.path
                code = "RevisionNotFound" if is_model else "RepoNotFound"
                self._send(404, b"", {"X-Error-Code": code})
                return
            content, headers = found
            if self.command == "GET" and hub.endless and hub.endless in self.path:
                self._send_on_and_on(headers)
                return
            is_weights = self.path.endswith(".safetensors") and self.command == "GET"
            if is_weights and hub.lies:
                content = content[:-1] + bytes([content[-1] ^ 1])
            start = int(given.removeprefix("bytes=").partition("-")[0]) if given else 0
            if start:
                size = len(content)
                headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            is_broken = is_weights and hub.breaks > 0
            hub.breaks -= is_broken
            self._send(206 if start else 200, content[start:], headers, is_broken)

        def _send(self, status, content, headers, is_broken=False):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[: len(content) // 2] if is_broken else content)
            self.close_connection = is_broken

        def _send_on_and_on(self, headers):
            self.send_response(hub.status)
            extra = {"Transfer-Encoding": "chunked", "Location": f"{self.path}?"}
            for name, value in {**headers, **extra}.items():
                self.send_header(name, value)
            self.end_headers()
            chunk, self.close_connection = b" " * 2**16, True
            with contextlib.suppress(ConnectionError):
                for _ in range(2**10):  # 64 MiB are "on and on".
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    hub.sent += len(chunk)
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
