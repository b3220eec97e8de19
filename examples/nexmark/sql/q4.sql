-- NEXMark, query 4: the average of the winning bids of each category, each hour. An auction takes at most ten seconds. The same as ../q4.yaml.
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
    'category', 'left.category', 'expires', 'left.expires', 'bid_time', 'right.date_time', 'price', 'right.price'
  )
));

create view winning as
select lot, category, window_start, window_end, max(price) as final
from table(session(
  table (select * from offers where bid_time <= expires) partition by (lot, category),
  descriptor(window_time), interval '11' second, interval '1' hour
)) as winning
group by lot, category, window_start, window_end;

create job `nexmark-q4` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q4'
select category, window_start, window_end, avg(final) as average
from table(tumble(table winning, descriptor(window_time), interval '1' hour)) as averages
group by category, window_start, window_end;
