-- NEXMark, query 18: the last bid of each bidder for each auction, of a day. The same as ../q18.yaml.
create job `nexmark-q18` with (delay = '4s') as
insert into elasticsearch 'nexmark-q18'
select bidder, auction, window_start, window_end, last(price) as price, last(channel) as channel, last(url) as url,
  last(date_time) as date_time, last(extra) as extra
from table(tumble(table nexmark, descriptor(date_time), interval '1' day)) as last_bids
where kind = 'bid'
group by bidder, auction, window_start, window_end;
