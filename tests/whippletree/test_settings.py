import pytest

from gateway_svc.settings import GatewaySettings
from openai_bridge.settings import BridgeSettings
from whippletree.settings import is_loopback, load


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:0", True),
        ("127.8.0.1:80", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("gateway:80", False),
        (":80", False),
        ("127.0.0.1.example.com:80", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_without_identity_a_service_refuses_to_be_reached_from_outside(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(GatewaySettings, ["--insecure_dev", "true", "--listen", "0.0.0.0:7010"])
    assert "only the loopback may be served, not 0.0.0.0:7010" in capsys.readouterr().err


def test_identity_is_on_unless_switched_off() -> None:
    assert load(BridgeSettings, []).insecure_dev is False


def test_a_gateway_without_keys_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(GatewaySettings, [])
    assert "identity.folder: name the folder of keys" in capsys.readouterr().err
