-- NEXMark, query 3: who sells in one of three states in category 10, and in which auction, when both come within an hour. The same as ../q3.yaml.
create view sides as
select *, coalesce(seller, id) as person
from nexmark
where kind = 'person' and state in ('OR', 'ID', 'CA') or kind = 'auction' and category = 10;

create view people as
select * from sides where kind = 'person';

create view auctions as
select * from sides where kind = 'auction';

create job `nexmark-q3` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q3'
select * from table(join(
  table people, table auctions, name => 'local_items', on => array['person'], within => '1h',
  add => map('name', 'left.name', 'city', 'left.city', 'state', 'left.state', 'auction', 'right.id')
));
