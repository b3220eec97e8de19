-- NEXMark, query 22: bids with the directories of their URLs. The same as ../q22.yaml.
create job `nexmark-q22` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q22'
select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
  split_part(url, '/', 6) as dir3
from nexmark
where kind = 'bid';
