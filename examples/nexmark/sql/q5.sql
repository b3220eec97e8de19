-- NEXMark, query 5: which auctions had the most bids in the last ten seconds, every two seconds. The same as ../q5.yaml.
create view counts as
select auction, window_start, window_end, count(*) as bids
from table(hop(table nexmark, descriptor(date_time), interval '2' second, interval '10' second)) as counts
where kind = 'bid'
group by auction, window_start, window_end;

create view equals as
select bids, window_start, window_end, collect_list(auction, 1000) as auctions
from table(tumble(table counts, descriptor(window_time), interval '2' second)) as equals
group by bids, window_start, window_end;

create job `nexmark-q5` with (delay = '4s') as
insert into elasticsearch 'nexmark-q5'
select window_start, window_end, max_by(auctions, bids) as auctions, max(bids) as bids
from table(tumble(table equals, descriptor(window_time), interval '2' second)) as hot
group by window_start, window_end;
