-- NEXMark, query 21: bids with the number of their channel, from its name or else from the URL. The same as ../q21.yaml.
create job `nexmark-q21` with (event_time = 'date_time', delay = '4s') as
insert into elasticsearch 'nexmark-q21'
select auction, bidder, price, channel,
  case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3' else regexp_extract(url, '[?&]channel_id=([^&]*)', 1) end as channel_id
from nexmark
where kind = 'bid' and (lower(channel) in ('apple', 'google', 'facebook', 'baidu') or regexp_extract(url, '[?&]channel_id=([^&]*)', 1) <> '');
