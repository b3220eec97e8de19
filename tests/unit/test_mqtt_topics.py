"""The stream to which a topic belongs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.streams.format_registry import FORMATS, form_of
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.mqtt.topics import TopicRoutes


def stream(name, *topics, **more):
    fields = {field: "string" for field in ("device", *more.get("fields", {}))}
    document = {"stream": name, "schema": fields, "mqtt": {"topics": list(topics), "fields": more.get("fields", {})}}
    return StreamSpec.from_document(document | ({"key": more["key"]} if "key" in more else {}))


def found(routes, topic):
    route = routes.find(topic.encode())
    return route and route.stream


@pytest.mark.parametrize(
    ("topic_filter", "topic", "does_match"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/b", "a", False),
        ("a/+", "a/b", True),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+/+", "/b", True),
        ("+", "/b", False),
        ("/+", "/b", True),
        ("#", "a", True),
        ("#", "a/b/c", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("a/$x/+", "a/$x/y", True),
        ("a/#", "a", True),
        ("a/#", "a/", True),
        ("a/#", "ab", False),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("a/+/c/#", "a/b/c/d/e", True),
        ("A/b", "a/b", False),
        ("a/#", "a/" + "x/" * 30_000, True),
        ("a/+/x", "a/" + "x/" * 30_000, False),
    ],
)
def test_filters_match_as_mqtt_says(topic_filter, topic, does_match):
    assert (found(TopicRoutes([stream("s", topic_filter)]), topic) == "s") is does_match


def test_the_most_specific_filter_counts():
    routes = TopicRoutes(
        [
            stream("all", "#"),
            stream("farms", "farm/#"),
            stream("turbines", "farm/+/turbine/+"),
            stream("lundy", "farm/lundy/#"),
            stream("seven", "farm/+/turbine/T07"),
        ]
    )
    assert found(routes, "x") == "all"
    assert found(routes, "farm") == "farms"
    assert found(routes, "farm/skye") == "farms"
    assert found(routes, "farm/skye/turbine/T01") == "turbines"
    assert found(routes, "farm/skye/turbine/T07") == "seven"
    assert found(routes, "farm/lundy/turbine/T07") == "lundy"
    assert found(routes, "farm/skye/turbine/T01/x") == "farms"
    assert routes.ambiguous == []


def test_the_same_filter_twice_goes_to_the_first_by_name_and_is_told():
    routes = TopicRoutes([stream("b", "x/+"), stream("a", "x/+")])
    assert found(routes, "x/1") == "a"
    assert routes.ambiguous == [("x/+", "a", "b")]


def test_the_key_is_the_level_that_the_document_names_else_the_field():
    by_level = TopicRoutes([stream("s", "a/#", key="site", fields={"site": 2})])
    assert by_level.find(b"a/b/lundy").find_key(b'{"site":"own"}') == b"lundy"
    assert by_level.find(b"a/b").find_key(b'{"site":"own"}') is None
    by_field = TopicRoutes([stream("s", "a/#", key="device", fields={"site": 1})])
    assert by_field.find(b"a/b").find_key(b'{"device":"d"}') == b"d"
    without = TopicRoutes([stream("s", "a/#")])
    assert without.find(b"a/b").find_key(b'{"device":"d"}') is None


def test_the_topic_is_the_source():
    assert TopicRoutes([stream("s", "a/#")]).find("a/\u00e9".encode()).headers == [
        ("strandline-source", b"mqtt:a/\xc3\xa9")
    ]


levels = st.sampled_from(["", "a", "b", "$c", "+"])
filters = st.tuples(st.lists(levels, min_size=1, max_size=4), st.booleans())


def matches(topic_filter, topic):
    """The text of section 4.7, word by word."""
    asked, given_levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and asked[0] in ("+", "#"):
        return False
    for at, one in enumerate(asked):
        if one == "#":
            return len(given_levels) >= at
        if at >= len(given_levels) or one not in ("+", given_levels[at]):
            return False
    return len(asked) == len(given_levels)


@given(st.lists(filters, min_size=1, max_size=5), st.lists(levels.filter("+".__ne__), min_size=1, max_size=6))
def test_a_route_is_found_exactly_where_a_filter_matches(parts, topic_levels):
    texts = ["/".join([*some, "#"] if is_open else some) or "x" for some, is_open in parts]
    topic = "/".join(topic_levels) or "x"
    routes = TopicRoutes([stream(f"s{number}", text) for number, text in enumerate(texts)])
    route = routes.find(topic.encode())
    matching = [number for number, text in enumerate(texts) if matches(text, topic)]
    assert (route is not None) == bool(matching)
    if route is not None:
        assert int(route.stream[1:]) in matching


@pytest.mark.parametrize("name", FORMATS)
def test_a_record_of_each_format_has_a_content_type(name):
    """Whatever comes by MQTT, or from files, is of the stream's format where its sender doesn't say more."""
    spec = stream("s", "a/#").model_copy(update={"format": name})
    assert TopicRoutes([spec]).find(b"a/b").content_type == form_of(name).content_type
