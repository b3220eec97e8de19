-- NEXMark, query 19: the ten highest bids of each auction on a day; of equal ones the earliest. The same as ../q19.yaml.
create job `nexmark-q19` with (delay = '4s') as
insert into elasticsearch 'nexmark-q19'
select auction, window_start, window_end, top_n_by(struct(bidder, price, channel, date_time), price, 10) as bids
from table(tumble(table nexmark, descriptor(date_time), interval '1' day)) as highest
where kind = 'bid'
group by auction, window_start, window_end;
