-- NEXMark, query 15: how many bids, and how many bidders and auctions, have prices of each rank on a day. The same as ../q15.yaml.
create view bids as
select * from nexmark where kind = 'bid';

create view bidders as
select bidder, window_start, window_end, count(*) as bids, count(*) filter (where price < 10000) as low,
  count(*) filter (where price >= 10000 and price < 1000000) as middle,
  count(*) filter (where price >= 1000000) as high
from table(tumble(table bids, descriptor(date_time), interval '1' day)) as bidders
group by bidder, window_start, window_end;

create view auctions as
select auction, window_start, window_end, count(*) filter (where price < 10000) as low,
  count(*) filter (where price >= 10000 and price < 1000000) as middle,
  count(*) filter (where price >= 1000000) as high
from table(tumble(table bids, descriptor(date_time), interval '1' day)) as auctions
group by auction, window_start, window_end;

create job `nexmark-q15` with (delay = '4s') as
begin
  insert into elasticsearch 'nexmark-q15-bidders'
  select window_start, window_end, sum(bids) as total_bids, sum(low) as rank1_bids, sum(middle) as rank2_bids,
    sum(high) as rank3_bids, count(*) as total_bidders, count(*) filter (where low > 0) as rank1_bidders,
    count(*) filter (where middle > 0) as rank2_bidders, count(*) filter (where high > 0) as rank3_bidders
  from table(tumble(table bidders, descriptor(window_time), interval '1' day)) as bidders_of_days
  group by window_start, window_end;
  insert into elasticsearch 'nexmark-q15-auctions'
  select window_start, window_end, count(*) as total_auctions, count(*) filter (where low > 0) as rank1_auctions,
    count(*) filter (where middle > 0) as rank2_auctions, count(*) filter (where high > 0) as rank3_auctions
  from table(tumble(table auctions, descriptor(window_time), interval '1' day)) as auctions_of_days
  group by window_start, window_end;
end;
