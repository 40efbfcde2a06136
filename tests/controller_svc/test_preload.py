"""The warm-up modules: they leave nothing behind but speed, and TLS works as before."""

import http.server
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from tests.fakes.processes import bench, program, script

WARM = ("openai", "controller_svc.preload.openai_client", "controller_svc.preload.lazy_trust_store")


async def test_a_warm_agent_imports_nothing_to_make_a_call(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "agent.py",
        """
        import sys
        before = set(sys.modules)
        import openai, threading
        client = openai.OpenAI(base_url='http://127.0.0.1:9/v1', api_key='k', max_retries=0)
        try:
            client.chat.completions.create(model='m', messages=[{'role': 'user', 'content': 'x'}])
        except openai.APIConnectionError:
            print(sorted(set(sys.modules) - before), threading.active_count())
        """,
    )
    async with bench(tmp_path / "w") as runner:
        end, output = await runner.run("r", program(path, preload=WARM))
    assert (end.code, output) == (0, {"stdout": "[] 1\n"})


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1 that signs itself, with its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    key, certificate, both = tmp_path / "key", tmp_path / "certificate", tmp_path / "both"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    both.write_text(certificate.read_text() + key.read_text())
    return both


TLS = """
import ssl, sys, urllib.request
certificate, address = sys.argv[1:3]
trusting = ssl.create_default_context(cafile=certificate)
print(urllib.request.urlopen(address, context=trusting).read().decode())
print([dict(part[0] for part in c['subject']) for c in ssl.create_default_context(cafile=certificate).get_ca_certs()])
try:
    urllib.request.urlopen(address, context=ssl.create_default_context())
except Exception as error:
    print('verify failed' in str(error))
try:
    ssl.create_default_context(cafile='/no/such/file')
except FileNotFoundError as error:
    print(error)
"""


async def test_a_lazy_trust_store_trusts_what_an_eager_one_does(authority: Path, tmp_path: Path) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    path = script(tmp_path, "agent.py", TLS)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            arguments = (str(authority), f"https://127.0.0.1:{server.server_port}")
            async with bench(tmp_path / "w") as runner:
                eager = await runner.run("eager", program(path, *arguments, preload=("ssl",)))
                lazy = await runner.run("lazy", program(path, *arguments, preload=("ssl", WARM[2])))
        finally:
            server.shutdown()
            thread.join()
    assert eager[1] == lazy[1]
    assert lazy[1] == {"stdout": "hello\n[{'commonName': '127.0.0.1'}]\nTrue\n[Errno 2] No such file or directory\n"}


async def test_a_lazy_trust_store_reads_a_file_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no certificate")
    text = """
        import ssl, sys
        context = ssl.create_default_context(cafile=sys.argv[1])
        print('made')
        context.get_ca_certs()
    """
    task = program(script(tmp_path, "agent.py", text), str(tmp_path / "broken"), preload=("ssl", WARM[2]))
    async with bench(tmp_path / "w") as runner:
        end, output = await runner.run("r", task)
    assert (end.code, output["stdout"]) == (1, "made\n")
    assert "SSLError" in output["stderr"]
