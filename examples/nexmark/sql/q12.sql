-- NEXMark, query 12: how many bids of a user come within ten seconds, by the time of their arrival. The same as ../q12.yaml.
create job `nexmark-q12` with (from = 'log') as
insert into elasticsearch 'nexmark-q12'
select bidder, window_start, window_end, count(*) as bids
from table(tumble(table nexmark, descriptor(log_time), interval '10' second)) as arrivals
where kind = 'bid'
group by bidder, window_start, window_end;
