"""The needed subscriptions and their topics, compared with the plain meaning of topic filters."""

from __future__ import annotations

import itertools

import pytest
from pydantic import ValidationError

from strandline.core.errors import InvalidDocument, InvalidSettings
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.mqtt.bridge import covers, widest
from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings, client_options

LEVELS = ("a", "b", "")
TOPICS = ["/".join(levels) for depth in (1, 2, 3, 4) for levels in itertools.product(LEVELS, repeat=depth)]
TOPICS += ["$SYS", "$SYS/a", "$SYS/a/b"]
BEGINNINGS = [levels for depth in (0, 1, 2) for levels in itertools.product(("a", "b", "+", ""), repeat=depth)]
FILTERS = ["/".join((*levels, last)) for levels in BEGINNINGS for last in ("a", "b", "+", "#", "") if levels or last]
FILTERS += ["$SYS/#", "$SYS/+"]


def matches(topic_filter: str, topic: str) -> bool:
    """MQTT 5.0, section 4.7, word by word."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    wanted, given = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        if len(given) < len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(w in ("+", g) for w, g in zip(wanted, given, strict=True))


def test_a_filter_covers_another_when_every_topic_of_it_matches():
    topics = {one: {topic for topic in TOPICS if matches(one, topic)} for one in FILTERS}
    for wide, narrow in itertools.product(FILTERS, repeat=2):
        if covers(wide, narrow):
            assert topics[narrow] <= topics[wide], (wide, narrow)
        elif (wide, narrow) != ("+/#", "#"):  # the same topics; one of the two must stay
            assert not topics[narrow] <= topics[wide], (wide, narrow)


def test_the_widest_filters_take_every_topic_that_all_of_them_take():
    assert widest(["a/#", "a/+", "a/b", "b/+", "b/c", "+/+/c"]) == {"a/#", "b/+", "+/+/c"}
    assert widest(["a", "a"]) == {"a"}


def test_the_broker_is_named_by_a_url():
    options = client_options(MqttBridgeSettings(mqtt_url="mqtts://broker.example", mqtt_version="3.1.1"))
    assert (options.host, options.port, options.tls is not None, options.is_5) == ("broker.example", 8883, True, False)
    with pytest.raises(InvalidSettings, match="STRANDLINE_MQTT_URL"):
        client_options(MqttBridgeSettings(mqtt_url="http://broker.example"))
    with pytest.raises(ValidationError):
        MqttBridgeSettings(mqtt_share_group="a/b")


def test_a_filter_is_no_longer_than_a_text_of_mqtt():
    def spec(topic: str) -> StreamSpec:
        return StreamSpec.from_document({"stream": "s", "schema": {"n": "long"}, "mqtt": {"topics": [topic]}})

    assert spec("é" * 32_767 + "/").mqtt is not None
    with pytest.raises(InvalidDocument, match="longer than 65,535 bytes"):
        spec("é" * 32_767 + "/a")
