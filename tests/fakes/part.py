"""A small program that the supervisor's tests start as a part. Standard library only.

`part.py PORT [--ready-after SECONDS] [--die CODE] [--escape FILE] [--deaf]`: answers GET /health with 200 and GET /pid
with its process id. `--die` ends it at once; `--escape` starts a grandchild in a session of its own, which ignores
SIGTERM and whose process id is added to FILE; `--deaf` ignores SIGTERM.
"""

import argparse
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Handler(BaseHTTPRequestHandler):
    """/health and /pid."""

    def do_GET(self) -> None:
        """Answer."""
        body = str(os.getpid()).encode() if self.path == "/pid" else b"ok"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def main() -> None:
    """Do as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--die", type=int)
    parser.add_argument("--escape")
    parser.add_argument("--deaf", action="store_true")
    arguments = parser.parse_args()
    print("hello from the part", flush=True)
    if arguments.escape:
        child = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
        with Path(arguments.escape).open("a") as file:
            file.write(f"{child.pid}\n")
    if arguments.die is not None:
        print("cannot go on", file=sys.stderr, flush=True)
        sys.exit(arguments.die)
    if arguments.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
