"""What etcd is shown and verified with, read again when the files have changed: new connections are made with that."""

from __future__ import annotations

import ssl

from gateway.config import ClusterConfig, Tls
from gateway.tls import Certificates


class EtcdCertificates(Certificates):
    """`context` is for connections to etcd; see `Terms`."""

    _what = "certificates for etcd"

    def _load(self) -> None:
        config = self._config
        context = ssl.create_default_context(cafile=config.ca)
        if config.cert:
            context.load_cert_chain(config.cert, config.key or None)
        self.context = context


def etcd_certificates(config: ClusterConfig) -> EtcdCertificates | None:
    """What the configuration names; None where etcd speaks no TLS. Raises StartError."""
    if not config.etcd_ca:
        return None
    files = Tls(cert=config.etcd_cert, key=config.etcd_key, ca=config.etcd_ca)
    return EtcdCertificates(files, section="the certificates for etcd cannot be used")
