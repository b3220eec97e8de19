-- NEXMark, query 1: bids in euros. The same as ../q1.yaml.
create job `nexmark-q1` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q1'
select auction, bidder, 0.908 * price as euros, date_time, extra
from nexmark
where kind = 'bid';
