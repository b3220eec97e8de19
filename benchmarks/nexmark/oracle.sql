-- What each query of NEXMark must give, in DuckDB: written from the queries' descriptions as SQL over tables says them best. Each
-- part is headed by a query and one of its stages. Times are milliseconds since 1970; `place` is where a record stands in the log.

-- views
create macro cut(ms, size) as ms // size * size;
create macro exact(thousandths) as
  cast(thousandths // 1000 as varchar) || '.' || lpad(cast(thousandths % 1000 as varchar), 3, '0');
create view bid as
select *, cut(date_time, 86400000) as day, make_timestamp(date_time * 1000) as moment,
  case when price < 10000 then 1 when price < 1000000 then 2 else 3 end as rank
from record where kind = 'bid';
create view person as select * from record where kind = 'person';
create view auction as select * from record where kind = 'auction';

-- q0 nexmark_q0
select auction, bidder, price, date_time, extra from bid;

-- q1 nexmark_q1
select auction, bidder, exact(price * 908) as euros, date_time, extra from bid;

-- q2 nexmark_q2
select auction, price from bid where auction % 123 = 0;

-- q5 hot
with ends as (
  select auction, unnest(range(cut(date_time, 2000) + 2000, cut(date_time, 2000) + 12000, 2000)) as window_end from bid),
counts as (select window_end, auction, count(*) as bids from ends group by all),
hot as (select * from counts qualify rank() over (partition by window_end order by bids desc) = 1)
select window_end - 2000 as window_start, window_end, bids, list(auction order by auction) as auctions from hot group by all;

-- q7 highest
select cut(date_time, 10000) as window_start, cut(date_time, 10000) + 10000 as window_end, auction, bidder, price, date_time, extra
from bid
qualify row_number() over (partition by cut(date_time, 10000) order by price desc, date_time, place) = 1;

-- q8 newcomers
select p.id as person, p.name as name, 1 as registered, count(*) as auctions,
  cut(p.date_time, 10000) as window_start, cut(p.date_time, 10000) + 10000 as window_end
from person p join auction a on a.seller = p.id and cut(a.date_time, 10000) = cut(p.date_time, 10000)
group by p.id, p.name, p.date_time;

-- q10 bids
select auction, bidder, price, date_time, extra, strftime(moment, '%Y-%m-%d') as day, strftime(moment, '%H:%M') as minute from bid;

-- q11 sessions
with marked as (
  select bidder, date_time,
    coalesce(date_time - lag(date_time) over (partition by bidder order by date_time) >= 10000, true) as begins
  from bid),
numbered as (select *, sum(begins::int) over (partition by bidder order by date_time) as number from marked)
select bidder, count(*) as bids, min(date_time) as window_start, max(date_time) + 10000 as window_end
from numbered group by bidder, number;

-- q12 arrivals
select bidder, count(*) as bids, cut(log_ms, 10000) as window_start, cut(log_ms, 10000) + 10000 as window_end
from bid group by bidder, cut(log_ms, 10000);

-- q13 nexmark_q13
select auction, bidder, price, date_time, value from bid join side on side.slot = bid.auction % 1000;

-- q14 nexmark_q14
select auction, bidder, exact(price * 908) as euros,
  case when hour(moment) between 8 and 18 then 'day' when hour(moment) in (7, 19) then 'between' else 'night' end as time_of_day,
  date_time, extra, length(regexp_replace(extra, '[^c]', '', 'g')) as c_count
from bid where price * 908 > 1000000000 and price * 908 < 50000000000;

-- q15 bidders_of_days
select day as window_start, day + 86400000 as window_end,
  count(*) as total_bids, count(*) filter (where rank = 1) as rank1_bids, count(*) filter (where rank = 2) as rank2_bids,
  count(*) filter (where rank = 3) as rank3_bids, count(distinct bidder) as total_bidders,
  count(distinct bidder) filter (where rank = 1) as rank1_bidders, count(distinct bidder) filter (where rank = 2) as rank2_bidders,
  count(distinct bidder) filter (where rank = 3) as rank3_bidders
from bid group by day;

-- q15 auctions_of_days
select day as window_start, day + 86400000 as window_end, count(distinct auction) as total_auctions,
  count(distinct auction) filter (where rank = 1) as rank1_auctions, count(distinct auction) filter (where rank = 2) as rank2_auctions,
  count(distinct auction) filter (where rank = 3) as rank3_auctions
from bid group by day;

-- q16 bidders_of_days
select channel, day as window_start, day + 86400000 as window_end, max(strftime(moment, '%H:%M')) as minute,
  count(*) as total_bids, count(*) filter (where rank = 1) as rank1_bids, count(*) filter (where rank = 2) as rank2_bids,
  count(*) filter (where rank = 3) as rank3_bids, count(distinct bidder) as total_bidders,
  count(distinct bidder) filter (where rank = 1) as rank1_bidders, count(distinct bidder) filter (where rank = 2) as rank2_bidders,
  count(distinct bidder) filter (where rank = 3) as rank3_bidders
from bid group by channel, day;

-- q16 auctions_of_days
select channel, day as window_start, day + 86400000 as window_end, count(distinct auction) as total_auctions,
  count(distinct auction) filter (where rank = 1) as rank1_auctions, count(distinct auction) filter (where rank = 2) as rank2_auctions,
  count(distinct auction) filter (where rank = 3) as rank3_auctions
from bid group by channel, day;

-- q17 auctions
select auction, day as window_start, day + 86400000 as window_end,
  count(*) as total_bids, count(*) filter (where rank = 1) as rank1_bids, count(*) filter (where rank = 2) as rank2_bids,
  count(*) filter (where rank = 3) as rank3_bids, min(price) as min_price, max(price) as max_price, avg(price) as avg_price,
  sum(price)::bigint as sum_price
from bid group by auction, day;

-- q18 last_bids
select bidder, auction, price, channel, url, date_time, extra, day as window_start, day + 86400000 as window_end from bid
qualify row_number() over (partition by bidder, auction, day order by date_time desc, place desc) = 1;

-- q21 nexmark_q21
select auction, bidder, price, channel,
  coalesce(
    case channel when 'Apple' then '0' when 'Google' then '1' when 'Facebook' then '2' when 'Baidu' then '3' end,
    nullif(split_part(split_part(url, 'channel_id=', 2), '&', 1), '')) as channel_id
from bid where channel_id is not null;

-- q22 nexmark_q22
select auction, bidder, price, channel, parts[4] as dir1, parts[5] as dir2, parts[6] as dir3
from (select *, string_split(url, '/') as parts from bid);

-- q19 highest
with ranked as (select *, row_number() over (partition by auction, day order by price desc, date_time, place) as nth from bid)
select auction, day as window_start, day + 86400000 as window_end,
  list({'bidder': bidder, 'price': price, 'channel': channel, 'date_time': date_time} order by nth) filter (where nth <= 10) as bids
from ranked group by auction, day;


-- q3 local_items
select a.seller as person, p.name as name, p.city as city, p.state as state, a.id as auction,
  least(a.date_time, p.date_time) as window_start, greatest(a.date_time, p.date_time) + 1 as window_end
from auction a join person p on a.seller = p.id
where a.category = 10 and p.state in ('OR', 'ID', 'CA');

-- q4 averages
with winning as (
  select a.id, a.category, max(b.price) as final, cut(max(b.date_time) + 11000, 3600000) as hour
  from auction a join bid b on b.auction = a.id and b.date_time between a.date_time and a.expires group by a.id, a.category)
select category, avg(final) as average, hour as window_start, hour + 3600000 as window_end from winning group by category, hour;

-- q9 winning
select a.id as lot, a.item as item, a.seller as seller, a.category as category, a.reserve as reserve, a.date_time as began,
  a.expires as expires, b.bidder as bidder, b.price as price, b.date_time as bid_time,
  min(b.date_time) over (partition by a.id) as window_start, max(b.date_time) over (partition by a.id) + 11000 as window_end
from auction a join bid b on b.auction = a.id and b.date_time between a.date_time and a.expires
qualify row_number() over (partition by a.id order by b.price desc, b.date_time, b.place) = 1;

-- q20 expanded
select b.auction as lot, b.bidder as bidder, b.price as price, b.channel as channel, b.date_time as bid_time, a.item as item,
  a.initial_bid as initial_bid, a.reserve as reserve, a.date_time as began, a.expires as expires, a.seller as seller,
  least(a.date_time, b.date_time) as window_start, greatest(a.date_time, b.date_time) + 1 as window_end
from bid b join auction a on b.auction = a.id where a.category = 10;
