"""Commands and TLS: `rollouts` against a gateway that asks for keys and certificates, by options and by environment."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.certificates import Authority, authority
from tests.fakes.gateway import running_gateway
from tests.fakes.keys import Keys, make_keys
from whippletree.cli.identity import operator_file

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAME = "whippletree.test"
"""In the gateway's certificate; its address is there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A gateway with mutual TLS and identity, which has the rollout `kept`."""

    address: str
    ours: Authority
    keys: Keys
    certificate: Path
    key: Path

    async def listed(self, *options: str, folder: Path | None = None, **environment: str) -> tuple[int, str]:
        """Exit code and output of `rollouts list` with an operator's key; `folder` is where it runs."""
        command = (
            sys.executable,
            "-m",
            "whippletree.cli.main",
            "rollouts",
            "list",
            "--gateway",
            self.address,
        )
        known = {name: value for name, value in os.environ.items() if not name.startswith("WHIPPLETREE_")}
        process = await asyncio.create_subprocess_exec(
            *command,
            *options,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**known, "WHIPPLETREE_API_KEY": self.keys.operator, **environment},
        )
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    ours, keys = authority(folder / "ca"), make_keys(folder / "keys")
    certificate, key = ours.sign("operator")
    access = keys.access.model_copy(update={"tls": ours.client("operator")})
    async with running_gateway(folder, keys=keys, access=access, tls=ours.server(NAME, mutual=True)) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("kept")
        yield Secured(address=gateway.address, ours=ours, keys=keys, certificate=certificate, key=key)


async def test_options_say_whom_to_trust_and_what_to_show(secured: Secured) -> None:
    code, output = await secured.listed(
        *("--tls-authority", str(secured.ours.path), "--tls-server-name", NAME),
        *("--tls-certificate", str(secured.certificate), "--tls-key", str(secured.key)),
    )
    assert code == 0, output
    assert "kept" in output


async def test_the_environment_says_the_same_and_tls_alone_trusts_whom_the_machine_does(secured: Secured) -> None:
    code, output = await secured.listed(
        WHIPPLETREE_TLS="1",
        WHIPPLETREE_TLS_CERTIFICATE=str(secured.certificate),
        WHIPPLETREE_TLS_KEY=str(secured.key),
        SSL_CERT_FILE=str(secured.ours.path),
    )
    assert code == 0, output
    assert "kept" in output


async def test_the_key_in_the_folder_is_for_gateways_on_the_loopback_alone(secured: Secured, tmp_path: Path) -> None:
    operator_file(tmp_path).write_text(secured.keys.operator)
    options = (
        *("--run-dir", str(tmp_path), "--tls-authority", str(secured.ours.path), "--tls-server-name", NAME),
        *("--tls-certificate", str(secured.certificate), "--tls-key", str(secured.key)),
    )
    code, output = await secured.listed(*options, WHIPPLETREE_API_KEY="")
    assert code == 0, output
    elsewhere = f"0.0.0.0:{secured.address.rpartition(':')[2]}"  # leads to the same gateway, and is no loopback
    code, output = await secured.listed(*options, "--gateway", elsewhere, WHIPPLETREE_API_KEY="")
    assert code == 2
    assert "WHIPPLETREE_API_KEY" in output
    code, output = await secured.listed(*options, "--gateway", elsewhere)
    assert code == 0, output


async def test_a_server_that_is_not_trusted_is_told_nothing(secured: Secured, tmp_path: Path) -> None:
    code, output = await secured.listed(
        *("--tls-authority", str(authority(tmp_path, "strangers").path)),
        *("--tls-certificate", str(secured.certificate), "--tls-key", str(secured.key)),
    )
    assert code == 1
    assert "CERTIFICATE_VERIFY_FAILED" in output


async def test_authorities_that_the_environment_names_must_be_there(secured: Secured, tmp_path: Path) -> None:
    code, output = await secured.listed("--tls", SSL_CERT_FILE=str(tmp_path / "mistyped.pem"))
    assert code == 2
    assert f"SSL_CERT_FILE: no such file: {tmp_path / 'mistyped.pem'}" in output


async def test_a_machine_without_authorities_trusts_no_file_of_where_it_works(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "None").mkdir()
    (tmp_path / "None" / "ca-certificates.crt").write_bytes(secured.ours.path.read_bytes())
    code, output = await secured.listed(
        *("--tls-certificate", str(secured.certificate), "--tls-key", str(secured.key)),
        folder=tmp_path,
        SSL_CERT_FILE="",
        SSL_CERT_DIR=str(tmp_path / "none"),
    )
    assert code == 2
    assert "this machine names no authorities" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tls-authority", "nowhere.pem"), "nowhere.pem"),
        (("--tls-certificate", __file__), "--tls-certificate and --tls-key go together"),
        (("--tls-key", __file__), "--tls-certificate and --tls-key go together"),
    ],
)
async def test_what_does_not_fit_is_a_clear_error(secured: Secured, options: tuple[str, ...], message: str) -> None:
    code, output = await secured.listed(*options, TERM="dumb", COLUMNS="200")
    assert code == 2
    assert message in output
