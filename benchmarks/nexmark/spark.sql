-- The queries of NEXMark as one would write them for plain Spark, in append mode. Each part is headed by a query and the stage whose
-- results it gives. `record` is the stream, with a watermark of 4 s on `date_time`; `side` is the table of query 13. What is not
-- here: query 12, since a file has no log time, and 4 and 9, since Spark refuses a join by time in front of a window.

-- views
create or replace temporary view bid as
select auction, bidder, price, channel, url, extra, date_time,
  case when price < 10000 then 1 when price < 1000000 then 2 else 3 end as rank
from record where kind = 'bid';
create or replace temporary view person as select id, name, city, state, date_time from record where kind = 'person';
create or replace temporary view auction as
select id, item, initial_bid, reserve, expires, seller, category, date_time from record where kind = 'auction';

-- q0 nexmark_q0
select auction, bidder, price, unix_millis(date_time) as date_time, extra from bid;

-- q1 nexmark_q1
select auction, bidder, cast(0.908 * price as string) as euros, unix_millis(date_time) as date_time, extra from bid;

-- q2 nexmark_q2
select auction, price from bid where auction % 123 = 0;

-- q3 local_items
select a.seller as person, p.name as name, p.city as city, p.state as state, a.id as auction,
  unix_millis(least(a.date_time, p.date_time)) as window_start, unix_millis(greatest(a.date_time, p.date_time)) + 1 as window_end
from person p join auction a on a.seller = p.id
  and a.date_time between p.date_time - interval 1 hour and p.date_time + interval 1 hour
where a.category = 10 and p.state in ('OR', 'ID', 'CA');

-- q5 hot
select unix_millis(ends.end) - 2000 as window_start, unix_millis(ends.end) as window_end, max(bids) as bids,
  max_by(auctions, bids) as auctions
from (
  select ends, bids, sort_array(collect_list(auction)) as auctions
  from (
    select window(date_time, '10 seconds', '2 seconds') as ends, auction, count(*) as bids
    from bid group by window(date_time, '10 seconds', '2 seconds'), auction)
  group by ends, bids)
group by ends;

-- q7 highest
select unix_millis(ends.start) as window_start, unix_millis(ends.end) as window_end, best.*
from (
  select window(date_time, '10 seconds') as ends,
    max_by(struct(auction, bidder, price, unix_millis(date_time) as date_time, extra),
      struct(price, -unix_millis(date_time))) as best
  from bid group by window(date_time, '10 seconds'));

-- q8 newcomers
select unix_millis(ends.start) as window_start, unix_millis(ends.end) as window_end, person, name, registered, auctions
from (
  select window(date_time, '10 seconds') as ends, coalesce(seller, id) as person, max(name) as name,
    count(*) filter (where kind = 'person') as registered, count(*) filter (where kind = 'auction') as auctions
  from record where kind in ('person', 'auction') group by window(date_time, '10 seconds'), coalesce(seller, id))
where registered > 0 and auctions > 0;

-- q10 bids
select auction, bidder, price, unix_millis(date_time) as date_time, extra, date_format(date_time, 'yyyy-MM-dd') as day,
  date_format(date_time, 'HH:mm') as minute
from bid;

-- q11 sessions
select bidder, count(*) as bids, unix_millis(session_window.start) as window_start,
  unix_millis(session_window.end) + 1 as window_end  -- in Spark a pause of just the gap ends no session
from bid group by session_window(date_time, '9999 milliseconds'), bidder;

-- q13 nexmark_q13
select auction, bidder, price, unix_millis(date_time) as date_time, value from bid join side on side.slot = bid.auction % 1000;

-- q14 nexmark_q14
select auction, bidder, cast(0.908 * price as string) as euros,
  case when hour(date_time) between 8 and 18 then 'day' when hour(date_time) in (7, 19) then 'between' else 'night' end as time_of_day,
  unix_millis(date_time) as date_time, extra, length(extra) - length(replace(extra, 'c', '')) as c_count
from bid where 0.908 * price > 1000000 and 0.908 * price < 50000000;

-- q15 bidders_of_days
select unix_millis(days.start) as window_start, unix_millis(days.end) as window_end, sum(bids) as total_bids, sum(low) as rank1_bids,
  sum(middle) as rank2_bids, sum(high) as rank3_bids, count(*) as total_bidders, count(*) filter (where low > 0) as rank1_bidders,
  count(*) filter (where middle > 0) as rank2_bidders, count(*) filter (where high > 0) as rank3_bidders
from (
  select window(date_time, '1 day') as days, bidder, count(*) as bids, count(*) filter (where rank = 1) as low,
    count(*) filter (where rank = 2) as middle, count(*) filter (where rank = 3) as high
  from bid group by window(date_time, '1 day'), bidder)
group by days;

-- q15 auctions_of_days
select unix_millis(days.start) as window_start, unix_millis(days.end) as window_end, count(*) as total_auctions,
  count(*) filter (where low > 0) as rank1_auctions, count(*) filter (where middle > 0) as rank2_auctions,
  count(*) filter (where high > 0) as rank3_auctions
from (
  select window(date_time, '1 day') as days, auction, count(*) filter (where rank = 1) as low,
    count(*) filter (where rank = 2) as middle, count(*) filter (where rank = 3) as high
  from bid group by window(date_time, '1 day'), auction)
group by days;

-- q16 bidders_of_days
select channel, unix_millis(days.start) as window_start, unix_millis(days.end) as window_end, max(minute) as minute,
  sum(bids) as total_bids, sum(low) as rank1_bids, sum(middle) as rank2_bids, sum(high) as rank3_bids, count(*) as total_bidders,
  count(*) filter (where low > 0) as rank1_bidders, count(*) filter (where middle > 0) as rank2_bidders,
  count(*) filter (where high > 0) as rank3_bidders
from (
  select window(date_time, '1 day') as days, channel, bidder, max(date_format(date_time, 'HH:mm')) as minute, count(*) as bids,
    count(*) filter (where rank = 1) as low, count(*) filter (where rank = 2) as middle, count(*) filter (where rank = 3) as high
  from bid group by window(date_time, '1 day'), channel, bidder)
group by days, channel;

-- q16 auctions_of_days
select channel, unix_millis(days.start) as window_start, unix_millis(days.end) as window_end, count(*) as total_auctions,
  count(*) filter (where low > 0) as rank1_auctions, count(*) filter (where middle > 0) as rank2_auctions,
  count(*) filter (where high > 0) as rank3_auctions
from (
  select window(date_time, '1 day') as days, channel, auction, count(*) filter (where rank = 1) as low,
    count(*) filter (where rank = 2) as middle, count(*) filter (where rank = 3) as high
  from bid group by window(date_time, '1 day'), channel, auction)
group by days, channel;

-- q17 auctions
select auction, unix_millis(days.start) as window_start, unix_millis(days.end) as window_end, total_bids, rank1_bids, rank2_bids,
  rank3_bids, min_price, max_price, avg_price, sum_price
from (
  select window(date_time, '1 day') as days, auction, count(*) as total_bids, count(*) filter (where rank = 1) as rank1_bids,
    count(*) filter (where rank = 2) as rank2_bids, count(*) filter (where rank = 3) as rank3_bids, min(price) as min_price,
    max(price) as max_price, avg(price) as avg_price, sum(price) as sum_price
  from bid group by window(date_time, '1 day'), auction);

-- q18 last_bids
select bidder, auction, last.*, unix_millis(days.start) as window_start, unix_millis(days.end) as window_end
from (
  select window(date_time, '1 day') as days, bidder, auction,
    max_by(struct(price, channel, url, unix_millis(date_time) as date_time, extra), date_time) as last
  from bid group by window(date_time, '1 day'), bidder, auction);

-- q19 highest
select auction, unix_millis(days.start) as window_start, unix_millis(days.end) as window_end,
  transform(slice(sorted, 1, 10), one -> struct(one.bidder, one.price, one.channel, -one.earlier as date_time)) as bids
from (
  select window(date_time, '1 day') as days, auction,
    sort_array(collect_list(struct(price, -unix_millis(date_time) as earlier, bidder, channel)), false) as sorted
  from bid group by window(date_time, '1 day'), auction);

-- q20 expanded
select b.auction as lot, b.bidder as bidder, b.price as price, b.channel as channel, unix_millis(b.date_time) as bid_time,
  a.item as item, a.initial_bid as initial_bid, a.reserve as reserve, unix_millis(a.date_time) as began,
  unix_millis(a.expires) as expires, a.seller as seller, unix_millis(least(a.date_time, b.date_time)) as window_start,
  unix_millis(greatest(a.date_time, b.date_time)) + 1 as window_end
from bid b join auction a on b.auction = a.id
  and b.date_time between a.date_time - interval 10 seconds and a.date_time + interval 10 seconds
where a.category = 10;

-- q21 nexmark_q21
select * from (
  select auction, bidder, price, channel, case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'
    when 'baidu' then '3' else regexp_extract(url, '[?&]channel_id=([^&]*)', 1) end as channel_id
  from bid)
where channel_id <> '';

-- q22 nexmark_q22
select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
  split_part(url, '/', 6) as dir3
from bid;
