"""A hub on the loopback interface: serves folders under the names of repositories, as the real one does.

Only what clients ask for when they load a model or download a dataset (`datasets/NAME`): the tree of a repository, and
its files with their ETag and commit.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0" * 39 + "1"  # where a branch is; any other commit can be asked for by its hash


@contextmanager
def loopback_hub(repositories: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """(address, list of requests so far) of a running hub."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(send_body=True)

        def do_HEAD(self) -> None:
            self._answer(send_body=False)

        def _answer(self, *, send_body: bool) -> None:
            requests.append(f"{self.command} {self.path}")
            path = self.path.split("?")[0].lstrip("/")
            for name, folder in repositories.items():
                if path.startswith(f"{name}/resolve/"):
                    revision, file = path.removeprefix(f"{name}/resolve/").split("/", 1)
                    commit = revision if len(revision) == len(COMMIT) else COMMIT
                    if (folder / file).is_file():
                        return self._send(200, (folder / file).read_bytes(), send_body=send_body, commit=commit)
                    return self._send(404, b"", send_body=send_body, commit=commit, error="EntryNotFound")
                if path.startswith(f"api/{name if name.startswith('datasets/') else f'models/{name}'}"):
                    siblings = [_entry(folder, file) for file in sorted(folder.rglob("*")) if file.is_file()]
                    info = {"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
                    body = siblings if "/tree/" in path else info
                    return self._send(200, json.dumps(body).encode(), send_body=send_body)
            return self._send(404, b"", send_body=send_body, error="RepoNotFound")

        def _send(
            self, status: int, body: bytes, *, send_body: bool, commit: str = COMMIT, error: str | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", commit)
            if error:
                self.send_header("X-Error-Code", error)
            self.end_headers()
            if send_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _entry(folder: Path, file: Path) -> dict[str, object]:
    name, content = file.relative_to(folder).as_posix(), file.read_bytes()
    return {
        "rfilename": name,
        "path": name,
        "type": "file",
        "size": len(content),
        "oid": hashlib.sha256(content).hexdigest(),
    }
