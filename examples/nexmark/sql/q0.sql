-- NEXMark, query 0: every bid, as it is. The same as ../q0.yaml.
create job `nexmark-q0` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q0'
select auction, bidder, price, date_time, extra
from nexmark
where kind = 'bid';
