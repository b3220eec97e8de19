"""Python version of ../joins.yaml: orders and their shipments, and orders that were not sent within an hour."""

from strandline import stream, tumbling

shop = stream(
    "shop",
    schema={"kind": "string", "order_id": "string", "ts": "timestamp", "amount": "double?", "carrier": "string?"},
    format="json",
    key="order_id",
)

events = shop.event_time("ts", delay="10s")
orders = events.where("kind = 'order'").named("orders")
shipments = events.where("kind = 'shipment'").named("shipments")
shop_shipments = (
    orders.join(
        shipments,
        name="shipped",
        on=["order_id"],
        after="1h",
        kind="left",
        amount="left.amount",
        ordered="left.ts",
        carrier="right.carrier",
        sent="right.ts",
    )
    .emit(elasticsearch="shop-shipped")
    .window(tumbling("1h"), name="hourly", by=["carrier"], n="count(*)", amount="sum(amount)")
    .emit(elasticsearch="shop-hour")
    .pipeline("shop-shipments")
)
