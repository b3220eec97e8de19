-- NEXMark, query 17: how many bids of each rank an auction has on a day, and their prices. The same as ../q17.yaml.
create job `nexmark-q17` with (delay = '4s') as
insert into elasticsearch 'nexmark-q17'
select auction, window_start, window_end, count(*) as total_bids, count(*) filter (where price < 10000) as rank1_bids,
  count(*) filter (where price >= 10000 and price < 1000000) as rank2_bids,
  count(*) filter (where price >= 1000000) as rank3_bids, min(price) as min_price, max(price) as max_price,
  avg(price) as avg_price, sum(price) as sum_price
from table(tumble(table nexmark, descriptor(date_time), interval '1' day)) as auctions
where kind = 'bid'
group by auction, window_start, window_end;
