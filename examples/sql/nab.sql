-- The same as ../nab.yaml: real sensor series. One record a reading:
-- {"device": "speed_6005", "timestamp": "2015-08-31 18:22:00", "value": 90}
create stream machines (
  device string,
  timestamp timestamp,
  value double
) with (partitions = 4, format = 'json', key = 'device');

create view hourly as
select device, window_start, window_end,
  count(*) as n, avg(value) as mean, min(value) as low, max(value) as high, sum(value) as total
from table(tumble(table machines, descriptor(timestamp), interval '1' hour))
group by device, window_start, window_end;

create job nab with (delay = interval '1' day, idle_timeout = interval '1' minute, max_ahead = interval '5' minute) as
begin
  insert into elasticsearch 'machines-hourly'
  select * from hourly;

  insert into elasticsearch 'machines-daily'
  select device, window_start, window_end,
    sum(n) as n, sum(total) / sum(n) as mean, min(low) as low, max(high) as high
  from table(tumble(table hourly, descriptor(window_time), interval '1' day)) as daily
  group by device, window_start, window_end;
end;
