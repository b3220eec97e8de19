"""The contract of each gateway, of Strandline and of a package: `tests/plugins/acme_gateway` is defined outside of Strandline.

`tests/fault/test_ingest_faults.py` kills each of them under load. In `tests/integration/test_package_gateway.py`, a stack starts
the one of the package.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import strandline.ingest
from strandline.core.errors import FunctionUnusable, InvalidDocument, InvalidSettings, StackError
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.contract import Gateway, StackServers
from strandline.ingest.registry import GATEWAYS, installed_gateways, stack_ports
from strandline.services.doctor.examination import server_checks
from strandline.services.embedded import preflight
from strandline.services.embedded.addresses import Ports, StackAddresses
from strandline.services.embedded.shutdown import stop_timeout_s
from strandline.services.embedded.stack import Stack
from strandline.services.jobs.apply_documents import check_documents
from strandline.services.processes.child_process import Program
from tests.support.plugins import forget_lists, forget_toys, install_toys
from tests.support.ports import free_port

TOY = "acme"
each = pytest.mark.parametrize("name", [*GATEWAYS, TOY])


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_toys(monkeypatch, "acme_gateway")
    yield
    forget_toys(monkeypatch)


@pytest.fixture
def gateway(name: str) -> Gateway:
    return installed_gateways()[name]


def own_fields(gateway: Gateway) -> set[str]:
    """Names of the settings that only this gateway has. The HTTP gateway has its settings in the class of all."""
    fields = set(gateway.settings().model_fields)
    if gateway.settings() is Settings:
        return {one for one in fields if one.startswith("http_")}
    return fields - set(Settings.model_fields)


@each
def test_the_entry_names_what_the_settings_contain(gateway: Gateway, name: str) -> None:
    assert gateway.name == name and gateway.title.startswith("the ") and gateway.part == f"gateway-{name}"
    fields, own = gateway.settings().model_fields, own_fields(gateway)
    assert {port.setting: port.default for port in gateway.ports} == {
        one: fields[one].default for one in own if one.endswith("_port") and fields[one].annotation is int
    }
    assert set(gateway.hosts) == {one for one in own if one.endswith("_host")}
    assert all(fields[one].default == "127.0.0.1" for one in gateway.hosts)
    assert {f"{one}certificate" for one in gateway.tls} == {one for one in own if one.endswith("_tls_certificate")}


@each
def test_the_module_of_the_process_runs_a_gateway(gateway: Gateway) -> None:
    spec = importlib.util.find_spec(gateway.module)
    assert spec is not None and spec.origin is not None
    last = ast.parse(Path(spec.origin).read_text()).body[-1]
    assert isinstance(last, ast.If) and "run_gateway(" in ast.unparse(last)


@each
def test_nothing_listens_off_loopback_without_a_login(gateway: Gateway) -> None:
    """Neither where senders connect, nor the health pages."""
    for host in {*gateway.hosts, "http_host"}:
        values: dict[str, Any] = {port.setting: free_port() for port in gateway.ports} | {host: "0.0.0.0"}
        serve = importlib.import_module(gateway.module).serve
        with pytest.raises(InvalidSettings, match="would accept every client"):
            asyncio.run(serve(gateway.settings()(**values)))


@pytest.mark.guarantee(
    "G880",
    "The gateway of a package keeps the promises of the built-in ones. A record is acknowledged only when it is in "
    "the log, also through a kill. `strandline up` starts and restarts the gateway, documents with its section are "
    "checked, and jobs read the stream without the package.",
    promise="acknowledged-records-are-stored",
)
@each
def test_supervision_starts_it_with_the_ports_of_the_stack(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Program] = []
    monkeypatch.setattr(Stack, "_start", lambda _, program: started.append(program))
    stack = Stack(Settings(), tmp_path, 100, Console(quiet=True))
    stack.parts[gateway.part]()
    (program,) = started
    assert program.name == gateway.part and program.arguments[-2:] == ["-m", gateway.module]
    assert program.stop_timeout_s == gateway.stop_timeout_s == stop_timeout_s(gateway.part)
    for port in gateway.ports:
        assert program.environment[f"STRANDLINE_{port.setting.upper()}"] == str(port.default + 100)
    for host in gateway.hosts:
        assert program.environment[f"STRANDLINE_{host.upper()}"] == "127.0.0.1"
    for name, value in program.environment.items():
        monkeypatch.setenv(name, value)
    settings = gateway.settings().read()
    assert settings.data_dir == tmp_path
    assert getattr(settings, "port_offset", 100) == 100


@each
def test_up_looks_at_its_ports_its_hosts_and_its_certificates(gateway: Gateway, tmp_path: Path) -> None:
    assert set(preflight.ports_to_take(Ports.moved(0), [gateway.part]).values()) == {
        one.default for one in gateway.ports
    }
    for name in (*gateway.hosts, *(f"{prefix}certificate" for prefix in gateway.tls)):
        with pytest.raises(InvalidSettings, match=f"STRANDLINE_{name.upper()} is set"):
            preflight.require_embedded_settings(
                {f"STRANDLINE_{name.upper()}": "0.0.0.0"}, StackAddresses.of(tmp_path, 0)
            )


@each
def test_the_doctor_makes_its_checks(gateway: Gateway) -> None:
    servers = StackServers("mqtt://127.0.0.1:1", has_own_broker=True)
    assert (gateway.part in server_checks(Settings(), servers)) is gateway.has_checks(servers)


def test_no_two_gateways_have_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [one.default for one in stack_ports().values()]
    assert len(numbers) == len(set(numbers))
    toy = installed_gateways()[TOY]
    for taken, who in ((9092, "kafka"), (8085, "udp_health_port")):
        port = type(toy.ports[0])("acme_health_port", taken, "pages")
        monkeypatch.setattr(type(toy), "ports", (port,))
        with pytest.raises(StackError, match=f"{who} and acme_health_port have the same port {taken}"):
            Ports.moved(0)


def test_the_entries_are_listed_without_what_only_a_process_needs() -> None:
    """`strandline down` and the doctor's list of ports read them."""
    program = "import sys; from strandline.ingest.registry import stack_ports; stack_ports(); print(*sys.modules)"
    held = set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "acme_gateway.entry" in held
    assert not held & {
        "pydantic",
        "pydantic_settings",
        "paho",
        "aiokafka",
        "sqlalchemy",
        "httpx",
        "acme_gateway.settings",
    }


# The section of a package's gateway in documents.


def document(section: str, name: str = "readings") -> str:
    return f"stream: {name}\nschema: {{n: long}}\ngateways: {section}\n"


def problems(text: str, registered: dict[str, dict[str, Any]] | None = None) -> list[str]:
    try:
        check_documents(text, "file.yaml", registered or {})
    except InvalidDocument as error:
        return [str(one) for one in error.problems]
    return []


@pytest.mark.guarantee("G880")
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{acme: {port: 5514}}", None),
        ("{acme: {port: high}}", r"file.yaml:3: gateways.acme.port: expected an integer, got 'high'"),
        ("{acme: {}}", r"gateways.acme.port: is missing; expected: Port on which senders connect"),
        ("{acme: {port: 5514, prot: 1}}", r"gateways.acme.prot: unknown field 'prot'; did you mean 'port'"),
        ("{acme: {port: 5514, facility: site}}", r"gateways.acme.facility: 'site' is not a field of the schema"),
        ("{acne: {port: 5514}}", r"gateways.acne: no installed package brings a gateway 'acne' .*did you mean 'acme'"),
        ("{udp: {port: 5514}}", r"no installed package brings a gateway 'udp'"),
        ("{Acme: {}}", r"gateways.Acme: String should match pattern"),
    ],
)
def test_the_section_of_a_package_is_checked_with_line_and_remedy(section: str, said: str | None) -> None:
    found = problems(document(section))
    if said is None:
        assert found == []
    else:
        assert len(found) == 1 and re.search(said, found[0]), found


def test_two_streams_of_one_port_are_refused() -> None:
    first = StreamSpec.from_document({"stream": "first", "schema": {"n": "long"}, "gateways": {"acme": {"port": 5514}}})
    (found,) = problems(document("{acme: {port: 5514}}"), {"first": first.as_document()})
    assert "gateways.acme.port: port 5514 of the gateway acme belongs to stream 'first' already" in found


@pytest.mark.guarantee("G880")
def test_a_registered_stream_is_read_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job needs no gateway."""
    toy = installed_gateways()[TOY]
    spec = StreamSpec.from_document({"stream": "s", "schema": {"n": "long"}, "gateways": {"acme": {"port": 5514}}})
    assert toy.section(spec).port == 5514
    forget_toys(monkeypatch)
    assert TOY not in installed_gateways()
    assert StreamSpec.from_document(spec.as_document()) == spec


def test_a_package_that_is_broken_or_misnamed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, module, said in (
        (
            "acme-broken",
            "raise ValueError('no')",
            "the gateway other of acme-broken 2.0 can't be imported: ValueError: no",
        ),
        ("acme-misnamed", "from acme_gateway.entry import GATEWAY", "has the name 'acme' and 1 ports"),
    ):
        root = tmp_path / package
        metadata = root / f"{package}-2.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
        own = package.replace("-", "_")
        (metadata / "entry_points.txt").write_text(f"[strandline.gateways]\nother = {own}:GATEWAY\n")
        (root / f"{own}.py").write_text(module)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(root)
            forget_lists()
            with pytest.raises(FunctionUnusable, match=re.escape(said)):
                installed_gateways()
            assert stop_timeout_s("gateway-other") > 0, "what runs can still be stopped"
        forget_lists()


def test_no_settings_of_a_gateway_are_missing_from_the_registry() -> None:
    for module in pkgutil.walk_packages(strandline.ingest.__path__, "strandline.ingest."):
        importlib.import_module(module.name)
    known = {gateway.settings() for gateway in installed_gateways().values()}
    assert {one for one in Settings.__subclasses__() if one.__module__.startswith("strandline.ingest.")} <= known
