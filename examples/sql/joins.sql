-- The same as ../joins.yaml: orders and their shipments, and those that were not sent within an hour.
create stream shop (
  kind string,
  order_id string,
  ts timestamp,
  amount double null,
  carrier string null
) with (format = 'json', key = 'order_id');

create view orders as
select * from shop where kind = 'order';

create view shipments as
select * from shop where kind = 'shipment';

create view shipped as
select o.order_id, o.amount, o.ts as ordered, s.carrier, s.ts as sent
from orders as o left join shipments as s
on o.order_id = s.order_id and s.ts between o.ts and o.ts + interval '1' hour;

create job `shop-shipments` with (delay = '10s') as
begin
  insert into elasticsearch 'shop-shipped'
  select * from shipped;
  insert into elasticsearch 'shop-hour'
  select carrier, window_start, window_end, count(*) as n, sum(amount) as amount
  from table(tumble(table shipped, descriptor(window_time), interval '1' hour)) as hourly
  group by carrier, window_start, window_end;
end;
