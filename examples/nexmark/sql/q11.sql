-- NEXMark, query 11: how many bids a user makes in each session, which ends when ten seconds pass without one. The same as ../q11.yaml.
create job `nexmark-q11` with (delay = '4s') as
insert into elasticsearch 'nexmark-q11'
select bidder, window_start, window_end, count(*) as bids
from table(session(
  table (select * from nexmark where kind = 'bid') partition by bidder,
  descriptor(date_time), interval '10' second, interval '1' hour
)) as sessions
group by bidder, window_start, window_end;
