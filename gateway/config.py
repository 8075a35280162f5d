"""What a broker can be told, and where it is told: defaults < file < environment < command line.

1. Every setting is a field of a struct below or of the struct of the part it concerns; all limits have a unit in their
   names. `millrace serve --config FILE` reads TOML with the same structure.
2. A setting `limits.outbox_bytes_max` is `MILLRACE_LIMITS_OUTBOX_BYTES_MAX` in the environment.
3. Each source is checked by itself, so that an error names the source and the setting: `ConfigError` is one line.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from core_log.setting_ranges import BYTES_MAX, Bytes, Count, FrameBytes, Milliseconds
from protocols.amqp.config import AmqpConfig
from protocols.kafka.adapter_static_members import static_client_ids
from protocols.kafka.config import KafkaConfig
from protocols.mqtt.config import MqttConfig
from protocols.native.config import NativeConfig
from protocols.native.connection import can_be_name
from protocols.peer.config import PeerConfig
from routing.config import BrokerConfig
from routing.name_rules import InvalidExpression

ENVIRONMENT_PREFIX = "MILLRACE_"

OFF = "off"

TLS_DOORS = {
    "amqps": "amqp", "mqtts": "mqtt", "natives": "native", "kafkas": "kafka", "websockets": "websocket",
    "https": "http",
}  # fmt: skip
"""The doors that speak TLS, and those they are otherwise the same as."""

WEBSOCKET_DOORS = ("websocket", "websockets")
"""The doors that speak MQTT in a WebSocket."""

HTTP_DOORS = ("http", "https")
"""The doors that speak HTTP alone."""

Source = Mapping[str, Any]

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+/?", re.IGNORECASE)
_ORDERED = (
    ("engine.auto_create_partitions", "engine.partitions_max"),
    ("engine.consumer_heartbeat_interval_ms", "engine.consumer_session_timeout_ms"),
    ("engine.group_session_timeout_ms_min", "engine.group_session_timeout_ms_max"),
    ("peer.heartbeat_ms", "peer.silence_ms_max"),
    ("peer.redial_ms_min", "peer.redial_ms_max"),
)
"""Settings of which the first may not be more than the second."""
_IN_FRAMES = ("engine.message_bytes_max", "engine.transaction_bytes_max")
"""What is larger than a frame from another broker never reaches a replica, nor does what comes behind it."""


PathText = Annotated[str, Meta(pattern=r"^[^\0]*$")]
"""Of a file or a directory."""


class ConfigError(Exception):
    """A setting that cannot be; the text is one line that names it and where it came from."""


class Listen(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Addresses to listen on: "host:port", port 0 for any free one, "off" for none. Those that end in s speak TLS."""

    amqp: str = "127.0.0.1:5672"
    mqtt: str = "127.0.0.1:1883"
    native: str = "127.0.0.1:9094"
    amqps: str = OFF
    mqtts: str = OFF
    natives: str = OFF
    kafka: str = OFF
    kafkas: str = OFF
    websocket: str = OFF
    websockets: str = OFF
    http: str = OFF
    https: str = OFF


class Tls(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The terms of the doors that speak TLS; one certificate for all of them."""

    cert: PathText = ""
    """The certificate in PEM, with those between it and a root that clients trust behind it."""
    key: PathText = ""
    """Its private key in PEM; empty: it is in the same file."""
    key_password: str = ""
    ca: PathText = ""
    """Certificates in PEM that those of clients must go back to."""
    verify: Literal["none", "optional", "required"] = "optional"
    """Certificates of clients: not asked for, verified if one is sent, or required. Without `ca` none is asked for."""
    name: Literal["common_name", "distinguished_name", "dns", "email", "uri"] = "common_name"
    """What of a client's certificate is the user name when it logs in with it: of its subject, or the first alternative
    name of that sort."""
    version_min: Literal["1.2", "1.3"] = "1.2"
    handshake_timeout_ms: Milliseconds = 10_000
    reload_interval_ms: Milliseconds = 5000
    """How often the files are looked at; one that has changed is used from the next handshake on, as after SIGHUP."""


class PreSharedKeysConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Doors that speak TLS by keys which both sides know beforehand, without certificates. The rest is as in `tls`."""

    doors: tuple[str, ...] = ()
    """Names of doors that speak TLS, as in `listen`."""
    file: PathText = ""
    """The keys: `IDENTITY:KEY` a line, the key in hexadecimal. The identity is the user name of who sends none."""
    hint: str = ""
    """Which key to take, for clients with TLS 1.2 that have several."""


class PeerTls(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """TLS between the brokers of a cluster: all of them have it, or none has."""

    cert: PathText = ""
    """This broker's certificate in PEM, for clients and servers alike, with those between it and `ca` behind it."""
    key: PathText = ""
    """Its private key in PEM; empty: it is in the same file."""
    key_password: str = ""
    ca: PathText = ""
    """What the certificates of all brokers must go back to, and those of nobody else: whoever has one is a broker."""
    verify_hostname: bool = True
    """Whether a certificate has to be made out for the host that was dialled (`cluster.advertise` there)."""
    version_min: Literal["1.2", "1.3"] = "1.2"
    handshake_timeout_ms: Milliseconds = 5000
    reload_interval_ms: Milliseconds = 5000
    """How often the files are looked at; see `tls`."""


class ProxyProtocol(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Doors behind a proxy that says whose connections it passes on (the PROXY protocol, version 1 or 2)."""

    doors: tuple[str, ...] = ()
    """Names of doors, as in `listen`: everybody who connects there has to begin with a header."""
    networks: tuple[str, ...] = ()
    """From where, such as "10.0.0.0/8" or "192.0.2.7": whoever connects from elsewhere is closed."""
    header_timeout_ms: Milliseconds = 5000
    """Time from the opening of the connection to a complete header."""


class Limits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Limits of the process and of each connection, whatever its protocol."""

    connections_max: Count = 20_000
    """Client connections of all doors; one more is closed at once."""
    read_bytes_max: Annotated[int, Meta(ge=1024, le=16 << 20)] = 256 << 10
    """Most bytes taken from a socket at once."""
    outbox_bytes_high: Annotated[int, Meta(ge=1024, le=BYTES_MAX)] = 256 << 10
    """A peer with more than this waiting for it gets no more deliveries, and is not read from once as much of answers
    has come to that, until half is gone."""
    outbox_bytes_max: Bytes = 64 << 20
    """A peer with more than this waiting for it, that takes nothing for `outbox_stalled_ms`, is disconnected."""
    outbox_stalled_ms: Milliseconds = 30_000
    close_linger_ms: Milliseconds = 1000
    """How long a connection that ends has to take the last bytes and to close its side."""
    shutdown_grace_ms: Milliseconds = 5000
    """How long connections have to end when the broker stops."""


class WebSocketConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The terms of the doors that speak MQTT in a WebSocket; what is in it obeys `mqtt`."""

    path: Annotated[str, Meta(pattern="^/")] = "/mqtt"
    """Where it is asked for; anything else is not found."""
    origins: str = ""
    """From where pages may connect, "https://one.example,https://two.example:8443"; empty: from anywhere. Clients that
    say no origin are no browsers, and may connect in any case."""
    head_bytes_max: Annotated[int, Meta(ge=1024, le=1 << 20)] = 16 << 10
    """Largest head of a request, in bytes."""
    handshake_timeout_ms: Milliseconds = 10_000
    """Time from the opening of the connection (with TLS: from the end of its handshake) to a complete request."""
    message_bytes_max: FrameBytes = 16 << 20
    """Largest message, in one frame or several; it may hold many MQTT packets."""


class HttpConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The terms of the doors that speak HTTP alone."""

    loopback_without_user: bool = True
    """Whether clients on this machine need no user to see figures, and to use the page and its operations as far as
    `native.anonymous_loopback` lets them act for `native.anonymous_user`. Not so behind a proxy that is on it as well.
    """
    origins: str = ""
    """From where else than its own address the page may be, "https://one.example,https://two.example:8443": where
    browsers find a proxy."""
    connections_max: Count = 32
    """Requests that are answered at a time; more are refused."""
    head_bytes_max: Annotated[int, Meta(ge=1024, le=1 << 20)] = 16 << 10
    """Largest head of a request, in bytes."""
    body_bytes_max: FrameBytes = 1 << 20
    """Largest body of a request, in bytes."""
    request_timeout_ms: Milliseconds = 10_000
    """Time from the opening of the connection (with TLS: from the end of its handshake) to the head of a request, from
    that to the end of its body, and for the client to take the answer."""
    operation_timeout_ms: Milliseconds = 60_000
    """Time of an operation from when its request is complete; one that takes longer is ended, or goes on unseen."""
    records_bytes_max: FrameBytes = 4 << 20
    """Keys, values and headers of records in one answer, in bytes; then fewer records come."""
    native_ca: PathText = ""
    """Certificates in PEM that those of other brokers' doors `natives` go back to; with it these are what operations
    on what another broker leads go through, else their doors `native`."""
    series_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """Series of one family of metrics; how many it lacks is a metric of its own."""


class Log(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is written to standard error. Who does not read it is not waited for, and told how many lines are lost."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class ClusterConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A broker as one of several; without a name it is a single one."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,100}$")] = ""
    """The cluster's."""
    broker_id: Annotated[int, Meta(ge=-1, lt=1 << 31)] = -1
    """The broker's number in it, from 0 on."""
    etcd: str = ""
    """Members of etcd, "host:port,host:port"."""
    peer: str = "127.0.0.1:9095"
    """Where other brokers reach this one: listened on, as "host:port"."""
    advertise: str = ""
    """The host under which others and clients find this broker's doors; empty: the one that is listened on."""
    rack: str = ""
    """Where this broker stands: clients are told so, and replicas are divided among racks."""
    homes: Annotated[int, Meta(ge=1, le=1024)] = 6
    """Home partitions of durable queues, if this broker makes the cluster; two for each broker are a good number."""
    offsets: Annotated[int, Meta(ge=1, le=1024)] = 8
    """Partitions of group offsets, likewise."""
    import_data: bool = False
    """Make a new cluster of the data directory, which is that of a single broker; one that is a member's stays so."""
    accept_old_data: bool = False
    """Start although the data directory is an older copy, or etcd's state is older than it: then all replicas in it
    count as lost until they are in sync again.
    """
    lease_s: Annotated[int, Meta(ge=2, le=60)] = 3
    """A broker that etcd has not heard of for so many seconds is taken for dead, and others lead what it led."""
    replica_lag_time_max_ms: Milliseconds = 5000
    """A replica that has not caught up for so long is not in sync any more."""
    publish_patience_ms: Milliseconds = 10_000
    """Publishers wait so long for a leader, or for enough replicas in sync, before they are refused."""
    etcd_user: str = ""
    etcd_password: str = ""
    etcd_ca: PathText = ""
    """Certificates in PEM that those of etcd must go back to; with it etcd is spoken to by TLS."""
    etcd_cert: PathText = ""
    """This broker's certificate for etcd, in PEM; it secures the connection, the user is `etcd_user`. Where etcd has
    users it refuses one that has a common name.
    """
    etcd_key: PathText = ""


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All settings of a broker."""

    data_dir: PathText = ""
    """Where everything durable lies; empty: `$XDG_DATA_HOME/millrace`, or `~/.local/share/millrace`."""
    listen: Listen = msgspec.field(default_factory=Listen)
    tls: Tls = msgspec.field(default_factory=Tls)
    psk: PreSharedKeysConfig = msgspec.field(default_factory=PreSharedKeysConfig)
    proxy_protocol: ProxyProtocol = msgspec.field(default_factory=ProxyProtocol)
    websocket: WebSocketConfig = msgspec.field(default_factory=WebSocketConfig)
    http: HttpConfig = msgspec.field(default_factory=HttpConfig)
    limits: Limits = msgspec.field(default_factory=Limits)
    log: Log = msgspec.field(default_factory=Log)
    users: dict[str, Annotated[str, Meta(min_length=1)]] = msgspec.field(default_factory=lambda: {"guest": "guest"})
    """Passwords by user name, for all doors; none may be empty. `guest` may connect from loopback addresses only."""
    engine: BrokerConfig = msgspec.field(default_factory=BrokerConfig)
    amqp: AmqpConfig = msgspec.field(default_factory=AmqpConfig)
    mqtt: MqttConfig = msgspec.field(default_factory=MqttConfig)
    native: NativeConfig = msgspec.field(default_factory=NativeConfig)
    kafka: KafkaConfig = msgspec.field(default_factory=KafkaConfig)
    cluster: ClusterConfig = msgspec.field(default_factory=ClusterConfig)
    peer: PeerConfig = msgspec.field(default_factory=PeerConfig)
    peer_tls: PeerTls = msgspec.field(default_factory=PeerTls)


def default_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """A durable place of the user's own: `$XDG_DATA_HOME/millrace`, or `~/.local/share/millrace`."""
    base = environment.get("XDG_DATA_HOME", "")
    # The XDG specification says that relative paths are invalid and to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "millrace"


def load_config(
    file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Source | None = None
) -> Config:
    """The settings of all sources. `flags` has the structure of a file. Raises ConfigError."""
    settings: dict[str, Any] = {}
    config = Config()
    sources = [
        (str(file), _read_file(file) if file is not None else {}),
        ("environment", _read_environment(os.environ if environment is None else environment)),
        ("command line", flags or {}),
    ]
    for name, source in sources:
        if source:
            _refuse_unknown(name, source)
            _merge(settings, source)
            try:
                config = msgspec.convert(settings, Config)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{name}: {_setting_first(str(error))}") from None
    if not config.data_dir:
        config.data_dir = str(default_data_dir())
    config.data_dir = os.path.abspath(os.path.expanduser(config.data_dir))
    for door in config.listen.__struct_fields__:
        address = parse_address(getattr(config.listen, door), setting=f"listen.{door}")
        if door in TLS_DOORS and address is not None and not (config.tls.cert or door in config.psk.doors):
            raise ConfigError(f"listen.{door}: needs a certificate: set tls.cert and tls.key (--tls-cert, --tls-key)")
    check_pre_shared_keys(config.psk)
    check_proxy_protocol(config.proxy_protocol)
    if config.tls.verify == "required" and not config.tls.ca:
        raise ConfigError("tls.verify: 'required' needs tls.ca (--tls-ca)")
    try:
        if config.kafka.static_client_ids:
            static_client_ids(config.kafka.static_client_ids)
    except InvalidExpression as error:
        raise ConfigError(f"kafka.static_client_ids: is no regular expression: {error}") from None
    if bool(config.peer_tls.cert) != bool(config.peer_tls.ca):
        missing = "ca" if config.peer_tls.cert else "cert"
        raise ConfigError(f"peer_tls.{missing}: is missing: brokers show each other certificates, and verify them")
    check_cluster(config.cluster)
    check_origins("websocket.origins", config.websocket.origins)
    check_origins("http.origins", config.http.origins)
    in_frames = [(name, "peer.frame_bytes_max") for name in _IN_FRAMES if config.cluster.name]
    for low, high in (*_ORDERED, *in_frames):
        least, most = (attrgetter(name)(config) for name in (low, high))
        if least > most:
            raise ConfigError(f"{low}: {least} is more than {high}, {most}")
    return config


def check_origins(setting: str, origins: str) -> None:
    """Whether browsers can say of a page that it is from there. Raises ConfigError."""
    for origin in filter(None, map(str.strip, origins.split(","))):
        if origin != "null" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"{setting}: {origin!r} is no origin of pages, such as https://one.example:8443")


def check_pre_shared_keys(config: PreSharedKeysConfig) -> None:
    """Whether doors can be what they are said to be. Raises ConfigError."""
    for door in config.doors:
        if door not in TLS_DOORS:
            raise ConfigError(f"psk.doors: {door!r} is no door that speaks TLS ({', '.join(sorted(TLS_DOORS))})")
    if config.doors and not config.file:
        raise ConfigError("psk.file: is missing: the keys")


def check_proxy_protocol(config: ProxyProtocol) -> None:
    """Whether doors and networks can be what they are said to be. Raises ConfigError."""
    for door in config.doors:
        if door not in Listen.__struct_fields__:
            raise ConfigError(f"proxy_protocol.doors: there is no door {door!r}")
    for network in config.networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ConfigError(f"proxy_protocol.networks: {error}") from None
    if config.doors and not config.networks:
        raise ConfigError("proxy_protocol.networks: is missing: from where headers are believed")


def check_cluster(config: ClusterConfig) -> None:
    """Whether all is said that a member has to be told. Raises ConfigError."""
    if not config.name:
        if config.broker_id >= 0 or config.etcd or config.import_data or config.accept_old_data:
            raise ConfigError("cluster.name: is missing (--cluster)")
        return
    if config.broker_id < 0:
        raise ConfigError("cluster.broker_id: is missing (--broker-id)")
    if not config.etcd:
        raise ConfigError("cluster.etcd: is missing (--etcd)")
    for member in config.etcd.split(","):
        if parse_address(member.strip(), setting="cluster.etcd") is None:
            raise ConfigError("cluster.etcd: a cluster needs etcd; it cannot be 'off'")
    for name, needed in (("etcd_cert", "etcd_ca"), ("etcd_key", "etcd_cert"), ("etcd_password", "etcd_user")):
        if getattr(config, name) and not getattr(config, needed):
            raise ConfigError(f"cluster.{name}: needs cluster.{needed}")
    if parse_address(config.peer, setting="cluster.peer") is None:
        raise ConfigError("cluster.peer: other brokers have to reach this one; it cannot be 'off'")


def parse_address(address: str, *, setting: str = "address") -> tuple[str, int] | None:
    """Host and port of "host:port" or "[IPv6 address]:port", None for "off". Raises ConfigError."""
    if address == OFF:
        return None
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    number = port.isascii() and port.isdigit() and int(port) <= 65535
    if not number or not bare or (":" in bare) != (bare != host) or not can_be_name(bare):
        raise ConfigError(f"{setting}: {address!r} is not HOST:PORT (such as 127.0.0.1:5672 or [::1]:5672) or 'off'")
    return bare, int(port)


@cache
def settings_of(struct: type[msgspec.Struct]) -> Sequence[tuple[str, Any]]:
    """Every setting below `struct` as its dotted name and its type."""
    found: list[tuple[str, Any]] = []
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += [(f"{field.name}.{name}", kind) for name, kind in settings_of(field.type)]
        else:
            found.append((field.name, field.type))
    return found


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: too many arrays or tables within each other") from None


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The variables with our prefix, as a file would have them."""
    names = {ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): (name, kind) for name, kind in settings_of(Config)}
    settings: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in names:
            raise ConfigError(f"environment: there is no setting {variable}{_similar(variable, names)}")
        name, kind = names[variable]
        try:
            value = msgspec.json.decode(text) if get_origin(kind) in (dict, tuple) else text
            value = msgspec.convert(value, kind, strict=False)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
            raise ConfigError(f"environment: {variable}: {_setting_first(str(error))}") from None
        *sections, key = name.split(".")
        section = settings
        for part in sections:
            section = section.setdefault(part, {})
        section[key] = value
    return settings


def _refuse_unknown(source_name: str, source: Source) -> None:
    """Names that are no setting, with the most similar that is."""
    known = [name for name, _ in settings_of(Config)]
    tables = {name.rpartition(".")[0] for name in known}

    def walk(section: Source, prefix: str) -> None:
        for key, value in section.items():
            name = prefix + key
            if name in tables:
                if not isinstance(value, Mapping):
                    raise ConfigError(f"{source_name}: {name}: expected a table of settings")
                walk(value, name + ".")
            elif name not in known:
                raise ConfigError(f"{source_name}: there is no setting {name}{_similar(name, known)}")

    walk(source, "")


def _similar(name: str, names: Any) -> str:
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _merge(settings: dict[str, Any], source: Source) -> None:
    """Settings of `source` over those we have. A table of users replaces the one before: it is one setting."""
    for key, value in source.items():
        if isinstance(value, Mapping) and key != "users":
            _merge(settings.setdefault(key, {}), value)
        else:
            settings[key] = value


def _setting_first(message: str) -> str:
    """`Expected int, got str - at $.limits.x` with the setting in front."""
    problem, at, path = message.replace("`", "").rpartition(" - at ")
    if not at:
        return message.replace("`", "")
    name = path.removeprefix("$").removeprefix(".")
    kind = dict(settings_of(Config)).get(name)
    choices = f", not one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else ""
    name, entry, rest = name.partition("[...]")
    where = f" in one of its entries{rest}" if entry else ""
    return f"{name}: {problem[0].lower()}{problem[1:]}{choices}{where}".removeprefix(": ")
