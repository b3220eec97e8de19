-- NEXMark, query 10: every bid into files, by its day. The same as ../q10.yaml.
create job `nexmark-q10` with (event_time = 'date_time', delay = '4s') as
insert into files '/data/nexmark-q10' as bids
select auction, bidder, price, date_time, extra, date_format(date_time, 'yyyy-MM-dd') as day,
  date_format(date_time, 'HH:mm') as minute
from nexmark
where kind = 'bid';
