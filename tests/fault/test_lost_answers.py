"""Questions to Kafka whose answers are lost: silence is never taken for an answer."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.core.errors import LogUnavailable
from strandline.ingest.append.outcome import Accepted
from strandline.ingest.append.spool import Spool
from strandline.ingest.append.writer import LogWriter
from strandline.log.admin import KafkaAdmin
from strandline.log.transactions import Entry, SlotConfig, TransactionSlot
from tests.support.faults.kafka_cluster import KafkaCluster
from tests.support.faults.kafka_proxy import Api, Rule, delay_answer, drop_answer, swallow_answer
from tests.support.faults.topic_dump import dump_topic
from tests.support.waiting import wait_until, wait_until_async

ALWAYS = 1_000_000
PARTITIONS = [0, 1, 2]
DEADLINE_S = 60
QUESTIONS: dict[str, Callable[[KafkaAdmin, str], object]] = {
    "starts": lambda admin, topic: admin.starts(topic, PARTITIONS),
    "ends": lambda admin, topic: admin.ends(topic, PARTITIONS),
    "ends with open": lambda admin, topic: admin.ends_with_open(topic, PARTITIONS),
    "newest log times": lambda admin, topic: admin.newest_log_times(topic, PARTITIONS),
    "offsets at": lambda admin, topic: admin.offsets_at(topic, PARTITIONS, 0),
    "describe": lambda admin, topic: admin.describe(topic),
    "config": lambda admin, topic: admin.config(topic),
    "change config": lambda admin, topic: admin.change_config(topic, {"retention.ms": "1000000"}),
    "check": lambda admin, _: admin.check(),
    "check writable": lambda admin, _: admin.check_writable(),
}
ASKED = (
    Api.LIST_OFFSETS,
    Api.METADATA,
    Api.DESCRIBE_CONFIGS,
    Api.INCREMENTAL_ALTER_CONFIGS,
    Api.DESCRIBE_TOPIC_PARTITIONS,
)


@pytest.fixture
def topic(cluster: KafkaCluster) -> Iterator[str]:
    name = f"answers-{uuid.uuid4().hex[:8]}"
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    client.create_topics([NewTopic(name, len(PARTITIONS), 1)])[name].result()
    admin = KafkaAdmin(cluster.bootstrap, timeout_s=10)
    wait_until(lambda: admin.do_leaders_answer(name, PARTITIONS), bool, "led", DEADLINE_S)
    yield name
    cluster.heal()


@pytest.mark.guarantee("G152")
@pytest.mark.parametrize("lose", [drop_answer, swallow_answer], ids=["connection breaks", "silence"])
@pytest.mark.parametrize(
    "question",
    [pytest.param(name, marks=[] if name in ("ends", "describe") else pytest.mark.long) for name in QUESTIONS],
)
def test_no_answer_is_an_error(
    cluster: KafkaCluster, topic: str, question: str, lose: Callable[[Api, int], Rule]
) -> None:
    admin = KafkaAdmin(cluster.bootstrap_proxied, timeout_s=20, changes_topics=True)
    QUESTIONS[question](admin, topic)  # now it is connected
    admin.timeout_s = 1.0
    for api in ASKED:
        cluster.proxy.add(lose(api, ALWAYS))
    with pytest.raises(LogUnavailable):
        QUESTIONS[question](admin, topic)


@pytest.mark.guarantee("G56")
def test_a_batch_in_doubt_is_written_once_though_the_topics_ends_are_not_told(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """The transaction was committed, and the answer is too late.

    Before the batch is sent again, it must be known whether it is in the log.
    """
    values = [b'{"id": %d}' % number for number in range(40)]
    spool = Spool(tmp_path, bytes_max=1_000_000)

    async def story() -> None:
        async with LogWriter(
            cluster.bootstrap_proxied,
            writer_id=f"writer-{topic}",
            epoch=1,
            record_bytes_max=1_000,
            confirm_timeout_s=1.0,
            spool=spool,
        ) as writer:

            async def append(part: list[bytes]) -> Accepted:
                records = [(value, value) for value in part]
                return await writer.append(
                    topic, records, received_ms=1, source=b"test", content_type=b"text/plain", may_spool=True
                )

            assert await append(values[:10]) in Accepted  # the producer is there, and the topic's ends are known
            await wait_until_async(lambda: spool.records == 0)
            cluster.proxy.add(delay_answer(Api.END_TXN, 5.0, 1))
            assert await append(values[10:]) is Accepted.SPOOL
            lost = cluster.proxy.add(swallow_answer(Api.LIST_OFFSETS, 2))
            await wait_until_async(lambda: spool.records == 0)
            assert lost.done

    asyncio.run(story())
    times = Counter(logged.value for logged in dump_topic(cluster.bootstrap, topic))
    assert times == dict.fromkeys(values, 1)


@pytest.mark.guarantee("G71")
@pytest.mark.guarantee("G72")
def test_a_record_of_a_transaction_slot_is_written_once_though_the_topics_ends_are_not_told(
    cluster: KafkaCluster, topic: str
) -> None:
    """An attempt that goes on for one that was killed must know what that one has written."""
    config = SlotConfig(
        cluster.bootstrap_proxied,
        topic,
        epoch=uuid.uuid4().int % 2**31,  # readers are kept for each, and these tests break their connections
        require_present=lambda _: None,
        identity_of=lambda message: (message.key() or b"").decode(),
        failpoints="dead_letters",
        record_bytes_max=1_000,
    )
    entries = [Entry(f"entry-{number}", b"value", f"entry-{number}".encode(), []) for number in range(20)]
    assert TransactionSlot(config, f"slot-{topic}", {}).write(entries[:15]) == 15
    lost = cluster.proxy.add(drop_answer(Api.LIST_OFFSETS, 2))
    assert TransactionSlot(config, f"slot-{topic}", {}).write(entries) == 5
    assert lost.done == 2
    assert len([*dump_topic(cluster.bootstrap, topic)]) == 20
