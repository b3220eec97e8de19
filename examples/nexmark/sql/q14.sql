-- NEXMark, query 14: bids between two prices in euros, with the time of day, and how often the letter c is in them. The same as ../q14.yaml.
create job `nexmark-q14` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q14'
select auction, bidder, 0.908 * price as euros,
  case when hour(date_time) >= 8 and hour(date_time) <= 18 then 'day' when hour(date_time) <= 6 or hour(date_time) >= 20 then 'night' else 'between' end as time_of_day,
  date_time, extra, length(extra) - length(replace(extra, 'c', '')) as c_count
from nexmark
where kind = 'bid' and 0.908 * price > 1000000 and 0.908 * price < 50000000;
