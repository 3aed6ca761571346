-- Runs that may be held against each other: valid and registered under one expectation, on one
-- machine and platform, of one model, at one point. Newest first. Published runs are compared among
-- themselves, since a reader can check no other; with a local run in the group also all together.
create or replace view replication_inputs as
with measured as (
    select
        r.expectation_digest, r.expectation_id, r.machine_key, r.platform, r.model_id,
        v.point, v.baseline, r.run_id, r.started_at, r.published, v.verdict,
        list(x.d order by x.block) as d
    from verdicts v
    join run r using (run_id)
    join pair_measures x on x.run_id = v.run_id and x.point = v.point
        and x.baseline = v.baseline and x.measure = 'whole session'
    where v.evidence and r.status = 'complete' and r.registration_status = 'registered'
    group by all
),
shown as (select unnest([true, false]) as published)
select
    m.expectation_digest, m.expectation_id, m.machine_key, m.platform, m.model_id, m.point,
    m.baseline, s.published,
    list(m.run_id order by m.started_at desc, m.run_id desc) as runs,
    list(m.verdict order by m.started_at desc, m.run_id desc) as verdicts,
    list(m.d order by m.started_at desc, m.run_id desc) as d
from measured m
join shown s on m.published or not s.published
group by m.expectation_digest, m.expectation_id, m.machine_key, m.platform, m.model_id, m.point,
    m.baseline, s.published
having s.published or bool_or(not m.published)
order by m.platform, m.machine_key, m.model_id, m.expectation_id, m.expectation_digest, m.point,
    m.baseline, s.published desc;
