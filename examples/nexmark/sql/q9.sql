-- NEXMark, query 9: the winning bid of each auction; of equal ones the earliest. An auction takes at most ten seconds. The same as ../q9.yaml.
create view lots as
select *, coalesce(auction, id) as lot
from nexmark
where kind in ('auction', 'bid');

create view auctions as
select * from lots where kind = 'auction';

create view bids as
select * from lots where kind = 'bid';

create view offers as
select * from table(join(
  table auctions, table bids, name => 'offers', on => array['lot'], within => map('after', '10s'),
  add => map(
    'item', 'left.item', 'seller', 'left.seller', 'category', 'left.category', 'reserve', 'left.reserve',
    'began', 'left.date_time', 'expires', 'left.expires', 'bidder', 'right.bidder', 'price', 'right.price',
    'bid_time', 'right.date_time'
  )
));

create job `nexmark-q9` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q9'
select lot, item, seller, category, reserve, began, expires, window_start, window_end, max_by(bidder, price) as bidder,
  max(price) as price, max_by(bid_time, price) as bid_time
from table(session(
  table (select * from offers where bid_time <= expires) partition by (lot, item, seller, category, reserve, began, expires),
  descriptor(window_time), interval '11' second, interval '1' hour
)) as winning
group by lot, item, seller, category, reserve, began, expires, window_start, window_end;
