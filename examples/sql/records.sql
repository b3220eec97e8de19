-- The same as ../records.yaml: each reading as a document of its own, once; and beside it minutes.
create stream climate (
  device string,
  ts timestamp with (unit = 'ms'),
  celsius double with (min = -90, max = 90),
  firmware string null
) with (partitions = 4, key = 'device');

create view readings as
select *, celsius * 1.8 + 32 as fahrenheit from (select * except (firmware) from climate);

create job climate with (delay = '10s') as
begin
  insert into elasticsearch 'climate-readings' as readings
  select * from readings;

  insert into elasticsearch 'climate-minutes'
  select *, mean > 25 as is_warm
  from (
    select device, count(*) as n, avg(celsius) as mean
    from table(tumble(table readings, descriptor(ts), interval '1' minute)) as minutes
    group by device, window_start, window_end
  );
end;
