"""Client identifiers of the MQTT server belong to logins. With clients on real sockets, over a log that waits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import ssl
from contextlib import asynccontextmanager, closing

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from strandline.access.authenticator import Authenticator
from strandline.access.tokens import MARK
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.gateway.serving.tls_handshakes import ServerTls, with_tls
from strandline.ingest.mqtt.connections import MqttConnections
from strandline.ingest.mqtt.logins import Logins, certificate_name
from strandline.ingest.mqtt.passwords import Passwords, write_password
from strandline.ingest.mqtt.sessions import Sessions
from strandline.services.certificates import make_dev_certificates
from tests.support import mqtt_client_packets as packets
from tests.support.tokens import ToldBook
from tests.support.waiting import stretched, wait_until_async
from tests.unit.test_doorkeeper import ROW, SECRET
from tests.unit.test_mqtt_batches import SlowLog

HOUR = b"\x11\x00\x00\x0e\x10"
"""Session expiry of an hour."""
RESUME = 0x00
"""Flags of a CONNECT without Clean Start."""
ROWS = {name: dataclasses.replace(ROW, id=digit * 16, name=name) for digit, name in [("1", "lundy"), ("2", "skye")]}


def token(name):
    return {"user": name, "password": f"{MARK}{ROWS[name].id}_{SECRET.decode()}".encode()}


def password(name):
    return {"user": name, "password": b"right"}


class Farm:
    """Everything that can prove who a client is: tokens, passwords, certificates of clients."""

    def __init__(self, path):
        self.path = path
        self.tls = None
        self.book = ToldBook()
        for row in ROWS.values():
            self.book.add(row)
        self.authenticator = Authenticator(self.book, look_s=1, kept_s=10)
        self.passwords = None
        self.logins = None

    def use(self, *, tokens=False, passwords=(), certificates=False):
        """Start to ask for these logins."""
        if passwords:
            for name in passwords:
                write_password(self.path / "passwords", name, b"right")
            self.passwords = Passwords(self.path / "passwords")
        if certificates:
            self.made = make_dev_certificates(self.path / "certs")
            self.tls = ServerTls(self.made.server, self.made.server_key, self.made.ca, "X")
        more = {"checks_certificates": True} if certificates else {}
        self.logins = Logins(self.passwords, self.authenticator if tokens else None, None, **more)

    def certificate(self, name):
        """TLS of a client with a certificate of this common name."""
        authority = x509.load_pem_x509_certificate(self.made.ca.read_bytes())
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        signed = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .sign(serialization.load_pem_private_key(self.made.ca_key.read_bytes(), None), hashes.SHA256())
        )
        file = self.path / f"{name}.pem"
        file.write_bytes(
            signed.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.create_default_context(cafile=self.made.ca)
        context.load_cert_chain(file)
        return {"tls": context}

    def close(self):
        self.authenticator.close()
        if self.passwords is not None:
            self.passwords.close()


class Client:
    """A client that has sent CONNECT, and the answer."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self.code, self.is_present = -1, False

    async def receive(self):
        """Return the type and the content of the next packet. Empty if the connection is closed."""
        try:
            head, length, shift = await self._reader.readexactly(1), 0, 0
            while True:
                (byte,) = await self._reader.readexactly(1)
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    return head + await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def is_open(self):
        self._writer.write(packets.PINGREQ)
        return await self.receive() == b"\xd0"

    async def cut(self):
        """Close the connection without DISCONNECT."""
        self._writer.close()
        with contextlib.suppress(OSError):  # the server may have closed it first
            await self._writer.wait_closed()


class Server:
    def __init__(self, farm, port):
        self._port = port
        self.clients = []
        self.log = SlowLog()
        self.sessions = Sessions(farm.path / "sessions")
        metrics = IngestMetrics("mqtt-listener")
        resources = GatewayResources(self.log, None, metrics, HostNames(), 10_000, asyncio.Event())
        self.all = MqttConnections(
            resources, farm.logins, self.sessions, record_bytes_max=10_000, connections_max=100,
            connections_per_address_max=100, keep_alive_max_s=600, confirm_timeout_s=5,
        )  # fmt: skip
        self.all.update_streams(
            [StreamSpec.from_document({"stream": "readings", "schema": {"n": "long"}, "mqtt": {"topics": ["a"]}})]
        )

    async def connect(self, version=5, client_id="pump", *, tls=None, flags=RESUME, content=HOUR, **more):
        name = "localhost" if tls is not None else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=tls, server_hostname=name)
        content = content if version == 5 else b""
        writer.write(packets.connect(version, client_id, flags=flags, content=content, **more))
        client = Client(reader, writer)
        self.clients.append(client)
        answer = await client.receive()
        assert answer[:1] == b"\x20"
        client.is_present, client.code = bool(answer[1]), answer[2]
        return client

    async def gone(self, client_id="pump"):
        """Wait until the server has noticed that the client is gone."""
        await wait_until_async(lambda: client_id not in self.all._clients)


@asynccontextmanager
async def serving(farm):
    """Run a server until the end of the block; the next one finds its sessions."""
    server = None

    def protocol():
        return server.all.connection()

    listening = await asyncio.get_running_loop().create_server(with_tls(farm.tls, protocol), "127.0.0.1", 0)
    server = Server(farm, listening.sockets[0].getsockname()[1])
    await farm.authenticator.look()
    try:
        yield server
    finally:
        listening.close()
        for client in server.clients:
            await client.cut()
        await wait_until_async(lambda: not server.all._connections)
        server.sessions.close()


@pytest.fixture
def farm(tmp_path):
    with closing(Farm(tmp_path)) as made:
        yield made


def play(story, make_loop=None):
    async def limited():
        async with asyncio.timeout(stretched(60)):
            await story

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(limited())


KINDS = ["tokens", "passwords", "certificates", "certificates of one user", "token and user of one name"]


def logins_of(farm, kind):
    """Logins of two devices."""
    match kind:
        case "tokens":
            farm.use(tokens=True)
            return token("lundy"), token("skye")
        case "passwords":
            farm.use(passwords=("lundy", "skye"))
            return password("lundy"), password("skye")
        case "certificates":
            farm.use(certificates=True)
            return farm.certificate("lundy"), farm.certificate("skye")
        case "certificates of one user":
            farm.use(passwords=("lundy",), certificates=True)
            return farm.certificate("lundy") | password("lundy"), farm.certificate("skye") | password("lundy")
        case _:
            farm.use(tokens=True, passwords=("lundy",))
            return token("lundy"), password("lundy")


@pytest.mark.guarantee(
    "G809",
    "If the MQTT server requires logins, a CONNECT with the client identifier of another login is refused while that "
    "login is connected or has a session, also after a restart. The refusal changes neither connection, session, nor "
    "will.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_identifier_belongs_to_its_login_while_connected_and_while_its_session_exists(farm, kind, make_loop):
    async def story():
        async with serving(farm) as server:
            mine = await server.connect(**own)
            assert mine.code == 0
            for version, refused in ((4, 0x02), (5, 0x85)):
                assert (await server.connect(version, **other)).code == refused
                assert (await server.connect(version, flags=0x02, **other)).code == refused, (
                    "a clean start ends nothing"
                )
            assert await mine.is_open()
            await mine.cut()
            await server.gone()
            assert (await server.connect(**other)).code == 0x85
            assert (await server.connect(client_id="valve", **other)).code == 0
        async with serving(farm) as server:  # after a restart
            assert (await server.connect(**other)).code == 0x85
            again = await server.connect(**own)
            assert (again.code, again.is_present) == (0, True)
            newest = await server.connect(**own)
            assert (newest.code, newest.is_present, (await again.receive())[:1] == b"\xe0") == (0, True, True)

    own, other = logins_of(farm, kind)
    play(story(), make_loop)


@pytest.mark.guarantee("G809")
def test_a_refused_connect_publishes_no_will_of_the_owner(farm):
    async def story():
        async with serving(farm) as server:
            will = ("a", b"gone", b"\x18\x00\x00\x0e\x10")
            await (await server.connect(will=will, **own)).cut()
            await server.gone()
            assert (await server.connect(will=("a", b"other", b""), **other)).code == 0x85
            assert (await server.connect(**own)).is_present
            assert server.log.values() == []

    own, other = logins_of(farm, "tokens")
    play(story())


@pytest.mark.guarantee(
    "G810",
    "A client identifier of the MQTT server becomes free when its session ends, its token is revoked, or its user is "
    "removed. It never becomes free because the ledger doesn't respond.",
    promise="each-operation-requires-its-right",
)
def test_an_identifier_is_free_when_its_session_ends(farm):
    async def story():
        async with serving(farm) as server:
            mine = await server.connect(flags=0x02, content=b"", **own)  # no session
            assert (await server.connect(**other)).code == 0x85
            await mine.cut()
            await server.gone()
            theirs = await server.connect(**other)
            assert (theirs.code, theirs.is_present) == (0, False)
            await theirs.cut()
            await server.gone()
            assert (await server.connect(**own)).code == 0x85

    own, other = logins_of(farm, "tokens")
    play(story())


@pytest.mark.guarantee("G810")
def test_an_identifier_is_free_when_its_token_is_revoked_but_not_while_the_ledger_is_away(farm):
    async def story():
        async with serving(farm) as server:
            await (await server.connect(**own)).cut()
            await server.gone()
            assert (await server.connect(client_id="valve", **other)).code == 0  # its token is known from now on
            farm.authenticator._seen_s = -float("inf")
            assert (await server.connect(**other)).code == 0x85
            farm.book.revoke(ROWS["lundy"].id)
            await farm.authenticator.look()
            theirs = await server.connect(**other)
            assert (theirs.code, theirs.is_present) == (0, False)
            assert server.sessions.owner("pump") == ("token", "skye")
        async with serving(farm) as server:
            assert (await server.connect(**other)).is_present

    own, other = logins_of(farm, "tokens")
    play(story())


@pytest.mark.guarantee("G810")
def test_an_identifier_is_free_when_its_user_is_removed_and_kept_when_it_gets_another_password(farm):
    async def story():
        async with serving(farm) as server:
            await (await server.connect(**own)).cut()
            await server.gone()
            write_password(file, "lundy", b"new")
            await asyncio.to_thread(farm.logins.reload)
            assert (await server.connect(**other)).code == 0x85
            again = await server.connect(user="lundy", password=b"new")
            assert again.is_present
            await again.cut()
            await server.gone()
            file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("lundy")))
            await asyncio.to_thread(farm.logins.reload)
            assert (await server.connect(**other)).code == 0

    own, other = logins_of(farm, "passwords")
    file = farm.path / "passwords"
    play(story())


def test_an_identifier_is_free_when_the_listener_asks_for_logins_of_another_kind(farm):
    async def story():
        async with serving(farm) as server:
            await (await server.connect(**own)).cut()
        farm.use(certificates=True)
        async with serving(farm) as server:
            assert (await server.connect(**farm.certificate("lundy"))).code == 0
        farm.tls = None
        farm.use(tokens=True)
        async with serving(farm) as server:
            assert (await server.connect(**other)).code == 0

    own, other = logins_of(farm, "tokens")
    play(story())


def test_clients_of_one_token_take_over_from_each_other(farm):
    async def story():
        async with serving(farm) as server:
            first = await server.connect(**own)
            assert (await server.connect(**own)).code == 0
            assert (await first.receive())[:1] == b"\xe0"

    own, _ = logins_of(farm, "tokens")
    play(story())


def test_without_logins_identifiers_have_no_owner(farm):
    async def story():
        async with serving(farm) as server:
            first = await server.connect()
            assert (await server.connect(user="anyone")).is_present
            assert (await first.receive())[:1] == b"\xe0"
            assert server.sessions.owner("pump") is None

    farm.use()
    play(story())


COMMON = ((("organizationName", "Farm"),), (("commonName", "pump, O=x"),))
ALTERNATIVES = (("DNS", "a.farm"), ("URI", "urn:a"))


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, None),
        ({}, None),
        ({"subject": COMMON, "subjectAltName": ALTERNATIVES}, 'organizationName="Farm", commonName="pump, O=x"'),
        (
            {"subject": COMMON[:1], "subjectAltName": ALTERNATIVES},
            'organizationName="Farm", DNS="a.farm", URI="urn:a"',
        ),
        (
            {"subject": (), "issuer": COMMON[:1], "serialNumber": "0A"},
            'organizationName="Farm", serialNumber="0A"',
        ),
    ],
)
def test_the_name_of_a_certificate_stays_after_a_renewal(certificate, name):
    assert certificate_name(certificate) == name
