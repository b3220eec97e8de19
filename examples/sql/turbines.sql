-- The same as ../turbines.yaml: a wind farm.
create stream turbines (
  turbine string,
  site_id string,
  ts timestamp with (unit = 'ms'),
  state string,
  power double with (min = 0), -- kW
  wind double null, -- m/s
  temperature double null -- of the gearbox oil, °C
) with (
  partitions = 4, format = 'json', key = 'turbine', retention = '7d',
  mqtt.topics = array['farm/+/turbine/+'], udp.port = 8082
);

create view loads as
select *, power / 3000 as load from turbines; -- of the rated power, 3 MW

create view per_minute as
select site_id, turbine, window_start, window_end,
  count(*) as n, avg(load) as load, max(load) as peak, avg(wind) as wind, max(temperature) as temperature
from table(tumble(table loads, descriptor(ts), interval '1' minute))
where state <> 'service'
group by site_id, turbine, window_start, window_end;

create job `turbine-health` with (delay = '15m', idle_timeout = '1m', max_ahead = '5m', dead_letters.index = true) as
begin
  insert into elasticsearch 'turbine-minute'
  select * from per_minute;

  insert into elasticsearch 'turbine-hour'
  select site_id, turbine, window_start, window_end,
    sum(n) as n, avg(load) as load, max(peak) as peak, max(temperature) as temperature
  from table(tumble(table per_minute, descriptor(window_time), interval '1' hour)) as hourly
  group by site_id, turbine, window_start, window_end;
end;
