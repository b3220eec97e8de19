-- NEXMark, query 13: bids with what a table says of their auctions. The same as ../q13.yaml.
create lookup `nexmark-side-input` (slot bigint, value string) with (key = 'slot', file = 'side_input.csv');

create view with_slot as
select *, auction % 1000 as slot
from nexmark
where kind = 'bid';

create view with_side as
select * from table(enrich(table with_slot, lookup => 'nexmark-side-input', key => 'slot', add => array['value']));

create job `nexmark-q13` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q13'
select auction, bidder, price, date_time, value
from with_side;
