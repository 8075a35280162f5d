"""How long a certificate is good for, and what is said when that is not long any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs

from gateway.config import Tls
from gateway.tls import Certificates
from tests.gateway.test_tls import HOST, Files


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ((-1, 364), None),
        ((-340, 25), "certificate expires soon"),
        ((-80, 10), None),
        ((-85, 5), "certificate expires soon"),
        ((-0.5, 0.5), None),
        ((-0.95, 0.05), "certificate expires soon"),
        ((-10, -1), "certificate has expired"),
    ],
)
def test_a_certificate_that_is_not_replaced_in_time_is_warned_of_once_a_day(
    days: tuple[float, float], said: str | None, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    files.issue(days=days)
    expires_at = (datetime.now(UTC) + timedelta(days[1])).timestamp()
    with capture_logs() as logs:
        certificates = Certificates(Tls(cert=files.cert))
        for _ in range(3):
            certificates.check()
        assert [one["event"] for one in logs] == ([said] if said is not None else [])
        assert certificates.lifetime is not None
        assert certificates.lifetime.expires_at == pytest.approx(expires_at, abs=60)
        files.issue()
        certificates.check()
        assert [one["event"] for one in logs[len(logs) - 1 :]] == ["certificates reloaded"]
        files.issue(days=(-10, -1))
        certificates.check()
        assert [one["event"] for one in logs[len(logs) - 2 :]] == ["certificates reloaded", "certificate has expired"]


def test_how_long_a_certificate_is_good_for_is_read_of_whatever_kind(tmp_path: Path) -> None:
    files = Files(tmp_path)
    own_authority = trustme.CA().create_child_ca().issue_cert(HOST, key_type=trustme.KeyType.RSA)
    own_authority.private_key_and_cert_chain_pem.write_to_path(files.cert)
    for verify in ("none", "required"):
        assert Certificates(Tls(cert=files.cert, ca=files.ca, verify=verify)).lifetime is not None
