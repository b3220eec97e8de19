-- NEXMark, query 7: the highest bid of every ten seconds; of equal ones the earliest. The same as ../q7.yaml.
create job `nexmark-q7` with (delay = '4s') as
insert into elasticsearch 'nexmark-q7'
select window_start, window_end, max_by(auction, price) as auction, max_by(bidder, price) as bidder,
  max(price) as price, max_by(date_time, price) as date_time, max_by(extra, price) as extra
from table(tumble(table nexmark, descriptor(date_time), interval '10' second)) as highest
where kind = 'bid'
group by window_start, window_end;
