-- What became of every run that a ledger says was started. `reason` says why it is not published.
-- Runs published before there was a ledger have a line of their own kind and count nowhere.
create or replace table ledger_runs as
with closed as (select * from ledger where event in ('END', 'ABORT')),
resumed as (
    select machine_key, run_id, count(*) as n_resumes from ledger where event = 'RESUME' group by all
)
select
    s.machine_key, s.run_id, s.expectation_id, s.model, s.platform,
    s.written_at as started_at, c.written_at as closed_at, coalesce(n.n_resumes, 0) as n_resumes,
    case
        when c.event = 'ABORT' then 'aborted'
        when c.event is null then 'open'
        when r.published then 'published'
        else 'unpublished'
    end as state,
    case state
        when 'aborted' then c.reason
        when 'open' then 'no end was recorded'
        when 'unpublished' then 'it ended and was not published'
    end as reason
from ledger s
left join closed c using (machine_key, run_id)
left join resumed n using (machine_key, run_id)
left join run r using (machine_key, run_id)
where s.event = 'START'
union all
select
    machine_key, run_id, expectation_id, model_id, platform, started_at, ended_at, 0,
    'before the ledger', 'measured when there was no ledger yet'
from run join before_ledger using (run_id)
order by started_at, machine_key, run_id;

-- Started = published + aborted, or the line says what is missing; the last line is the total.
create or replace view ledger_balance as
with counted as (
    select
        machine_key,
        count(*) filter (state <> 'before the ledger') as started,
        count(*) filter (state = 'published') as published,
        count(*) filter (state = 'aborted') as aborted,
        count(*) filter (state = 'open') as open,
        count(*) filter (state = 'unpublished') as unpublished,
        count(*) filter (state = 'before the ledger') as before_ledger,
        coalesce(
            list(format('{} {}: {}', run_id, state, reason) order by started_at, run_id)
                filter (state in ('aborted', 'open', 'unpublished')),
            []
        ) as reasons,
        grouping(machine_key) as is_total
    from ledger_runs
    group by grouping sets ((machine_key), ())
)
select
    coalesce(machine_key, 'all machines') as machine_key,
    started, published, aborted, open, unpublished, before_ledger,
    started = published + aborted as balanced,
    reasons
from counted
order by is_total, machine_key;
