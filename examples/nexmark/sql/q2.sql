-- NEXMark, query 2: bids for certain auctions. The same as ../q2.yaml.
create job `nexmark-q2` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q2'
select auction, price
from nexmark
where kind = 'bid' and auction % 123 = 0;
