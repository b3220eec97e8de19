-- The same as ../inputs.yaml: two streams, each with its own event time, delay and names of fields, united for windows over both.
create stream turbines (
  turbine string,
  site_id string,
  ts timestamp with (unit = 'ms'),
  power double
) with (key = 'turbine');

create stream inverters (
  inverter string,
  site_id string,
  time timestamp,
  watts long
) with (key = 'inverter');

create view in_kilowatts as
select *, watts / 1000 as power from inverters;

create view united as
select * from turbines
union all
select * from in_kilowatts;

create job `site-power` with (
  'inputs.turbines.event_time' = 'ts', 'inputs.turbines.delay' = '10s', 'inputs.inverters.delay' = '1m'
) as
begin
  insert into elasticsearch 'site-minute'
  select site_id, window_start, window_end, count(*) as n, sum(power) as power
  from table(tumble(table united, descriptor(event_time), interval '1' minute)) as per_site
  group by site_id, window_start, window_end;
  insert into elasticsearch 'inverter-5m'
  select inverter, window_start, window_end, count(*) as n, max(watts) as peak
  from table(tumble(table inverters, descriptor(time), interval '5' minute)) as per_inverter
  group by inverter, window_start, window_end;
end;
