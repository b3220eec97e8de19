"""Whatever is added, drained, tried in vain and interrupted by a restart: records leave once, in the order they came."""

from collections import defaultdict, deque

from hypothesis import given
from hypothesis import strategies as st

from strandline.ingest.append.outcome import SpoolFull
from strandline.ingest.append.spool import Attempt, Spool, SpooledRecord
from tests.support.examples import examples

TOPICS = st.sampled_from(["t", "u", "v"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.tuples(TOPICS, st.integers(0, 300)), min_size=1, max_size=8)),
        st.tuples(st.just("drain"), TOPICS, st.integers(1, 5), st.integers(1, 2_000)),
        st.tuples(st.just("fail"), TOPICS, st.integers(1, 5)),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


@examples(50)
@given(steps=STEPS)
def test_records_leave_once_and_in_order(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory, bytes_max=6_000)
    expected = defaultdict(deque)
    number = 0
    for step in steps:
        if step[0] == "add":
            records = []
            for topic, size in step[1]:
                number += 1
                records.append(SpooledRecord(topic, 1, number, b"x" * size, None, [("n", b"%d" % number)]))
            try:
                spool.add(records)
            except SpoolFull:
                continue
            for record in records:
                expected[record.topic].append(record)
        elif step[0] == "drain":
            _, topic, records_max, bytes_max = step
            chunk = spool.head(topic, records_max, bytes_max)
            assert (chunk is None) == (not expected[topic])
            if chunk:
                spool.begin(Attempt(topic, chunk.last_id, {0: 1}))
                spool.end(topic, chunk.last_id)
                assert chunk.records == [expected[topic].popleft() for _ in chunk.records]
        elif step[0] == "fail":
            _, topic, records_max = step
            if chunk := spool.head(topic, records_max, 10_000):
                spool.begin(Attempt(topic, chunk.last_id, {0: 1}))
                spool.end(topic, None)
        else:
            spool.close()
            spool = Spool(directory, bytes_max=6_000)
        assert spool.records == sum(map(len, expected.values()))
        assert 0 <= spool.bytes <= 6_000
        assert (spool.bytes == 0) == (spool.records == 0)
    spool.close()
