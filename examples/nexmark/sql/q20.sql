-- NEXMark, query 20: bids with their auctions, of category 10, when they are at most ten seconds apart. The same as ../q20.yaml.
create view lots as
select *, coalesce(auction, id) as lot
from nexmark
where kind = 'auction' and category = 10 or kind = 'bid';

create view bids as
select * from lots where kind = 'bid';

create view auctions as
select * from lots where kind = 'auction';

create job `nexmark-q20` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q20'
select * from table(join(
  table bids, table auctions, name => 'expanded', on => array['lot'], within => '10s',
  add => map(
    'bidder', 'left.bidder', 'price', 'left.price', 'channel', 'left.channel', 'bid_time', 'left.date_time',
    'item', 'right.item', 'initial_bid', 'right.initial_bid', 'reserve', 'right.reserve', 'began', 'right.date_time',
    'expires', 'right.expires', 'seller', 'right.seller'
  )
));
