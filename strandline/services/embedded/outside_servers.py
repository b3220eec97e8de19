"""External servers that a stack uses instead of its own: passed to `up`, set in its environment, or stored by the last `up`.

`DIR/stack.json` stores them. They are checked, but never started, watched, or stopped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from strandline.core.errors import InvalidSettings, StackError
from strandline.core.settings import Settings
from strandline.core.urls import without_credentials
from strandline.ledger.database import sqlite_file, without_secrets
from strandline.services.embedded.addresses import OUTSIDE_FIELDS, STACK_FILE, Outside, StackAddresses, read_stack

EMBEDDED = "embedded"
"""Value instead of an address: use the stack's own server, whatever is stored."""
_LOGINS = {
    "kafka": "STRANDLINE_KAFKA_USERNAME and STRANDLINE_KAFKA_PASSWORD_FILE",
    "elasticsearch": "STRANDLINE_ELASTICSEARCH_USERNAME and STRANDLINE_ELASTICSEARCH_PASSWORD_FILE",
    "mqtt": "STRANDLINE_MQTT_USERNAME and STRANDLINE_MQTT_PASSWORD_FILE",
    "ledger": "STRANDLINE_LEDGER_PASSWORD_FILE",
}


def choose_outside(given: Mapping[str, str | None], data_dir: Path, port_offset: int) -> Outside:
    """Return the external servers by name. The options take precedence over the environment, and this over `stack.json`. The
    stack's own address, or `embedded`, means its own server. Raises InvalidSettings for an address with a password, because
    `stack.json` and messages contain addresses."""
    # The bridge's clients take long to import, and `down`, which also imports this module, doesn't need them.
    from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings

    set_here = MqttBridgeSettings.read()
    own = StackAddresses.of(data_dir.absolute(), port_offset)
    there = read_stack(data_dir) if (data_dir / STACK_FILE).exists() else own
    outside: dict[str, str] = {}
    for name, field in OUTSIDE_FIELDS.items():
        address = given.get(name)
        if address is None and field in set_here.model_fields_set:
            address = str(getattr(set_here, field))
        if address is None and name in there.outside:
            address = str(getattr(there, field))
        mine = str(getattr(own, field))
        if address is not None and address not in (EMBEDDED, mine, mine.replace("127.0.0.1", "localhost")):
            _require_usable(name, address)
            outside[name] = address
    return outside


def take_over(outside: Outside, environment: os._Environ[str] | dict[str, str] = os.environ) -> None:
    """Set these servers in the settings of this process. A login is used only for the server that the settings name."""
    for name, address in outside.items():
        variable = f"STRANDLINE_{OUTSIDE_FIELDS[name].upper()}"
        for other in [one for one in environment if one.upper() in (variable, f"{variable}_FILE")]:
            del environment[other]
        environment[variable] = address


def require_outside(outside: Outside, settings: Settings) -> None:
    """Run the doctor's checks of these servers. Raises StackError with the problems and remedies."""
    if not outside:
        return
    # The client of each kind of server takes long to import, and most stacks have only their own servers.
    from strandline.ingest.gateway.contract import StackServers
    from strandline.ingest.mqtt.bridge_entry import GATEWAY as BRIDGE
    from strandline.services.doctor.examination import DEADLINE_S, server_checks
    from strandline.services.doctor.finding import State, examine
    from strandline.services.doctor.ledger import check_ledger

    servers = StackServers(outside["mqtt"], has_own_broker=False) if "mqtt" in outside else None
    checks = dict(server_checks(settings, servers))
    if servers is not None:
        checks["mqtt"] = checks[BRIDGE.part]
    checks["ledger"] = partial(check_ledger, settings.ledger_url, is_upgraded_next=True)
    found = examine({name: checks[name] for name in outside}, DEADLINE_S, settings)
    wrong = [f"{one.subject}: {one.message}; {one.remedy}" for one in found if one.state is State.WRONG]
    if wrong:
        raise StackError(f"{'. '.join(wrong)}. Nothing was started")


def _require_usable(name: str, address: str) -> None:
    if name == "ledger":
        has_password = without_secrets(address) != sa.make_url(address).render_as_string(hide_password=False)
        file = sqlite_file(address)
        if file is not None and not file.is_absolute():
            raise InvalidSettings(f"the ledger {address} is relative to a directory; write sqlite:////DIRECTORY/FILE")
    else:
        has_password = without_credentials(address) != address
    if has_password:
        raise InvalidSettings(
            f"the address of {name} contains a login, but `strandline up` stores addresses in files; remove the "
            f"login, and set {_LOGINS[name]}"
        )
