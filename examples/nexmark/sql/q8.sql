-- NEXMark, query 8: who has registered and begun an auction within the same ten seconds. The same as ../q8.yaml.
create view newcomers_and_sellers as
select *, coalesce(seller, id) as person
from nexmark
where kind in ('person', 'auction');

create job `nexmark-q8` with (delay = '4s') as
insert into elasticsearch 'nexmark-q8'
select person, window_start, window_end, max(name) as name, count(*) filter (where kind = 'person') as registered,
  count(*) filter (where kind = 'auction') as auctions
from table(tumble(table newcomers_and_sellers, descriptor(date_time), interval '10' second)) as newcomers
group by person, window_start, window_end
having registered > 0 and auctions > 0;
