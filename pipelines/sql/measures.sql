-- What a ratio can time. The first is the primary one; the others are named wherever they are shown.
create or replace table measures (measure varchar, position int);
insert into measures values
    ('whole session', 0),
    ('TTFT, first turn', 1),
    ('TTFT after a tool result, summed over hops', 2),
    ('prefill, summed over turns', 3);

-- The per-block table the statistics are computed from: one row a measure, pair and usable block.
create or replace view pair_measures as
with timed as (
    select run_id, point, baseline, treatment, block, 0 as position,
           base_wall_s as base_s, treat_wall_s as treat_s from block_pairs where usable
    union all
    select run_id, point, baseline, treatment, block, 1,
           base_ttft_s, treat_ttft_s from block_pairs where usable
    union all
    select run_id, point, baseline, treatment, block, 2,
           base_ttft_after_tool_s, treat_ttft_after_tool_s from block_pairs where usable
    union all
    select run_id, point, baseline, treatment, block, 3,
           base_prefill_s, treat_prefill_s from block_pairs where usable
)
select run_id, point, baseline, treatment, block, measure, base_s, treat_s,
       ln(base_s) - ln(treat_s) as d
from timed join measures using (position)
where base_s > 0 and treat_s > 0;

-- Every point of every run and how many of its blocks may be used.
create or replace view point_blocks as
with points as (
    select run_id, point, any_value(workload) as workload, any_value(n_prefix) as n_prefix,
           any_value(n_hops) as n_hops
    from blocks group by all
)
select
    p.run_id, p.point, q.workload, q.n_prefix, q.n_hops, p.baseline, p.treatment,
    count(*) as n_planned,
    count(*) filter (not p.usable) as n_void
from block_pairs p
join points q using (run_id, point)
group by all;

-- One row a ratio: the seconds of its usable blocks, in block order. A point without a hop has no
-- turn after a tool result, so no such ratio either.
create or replace view ratio_inputs as
select
    p.run_id, p.point, p.workload, p.n_prefix, p.n_hops, p.baseline, p.treatment,
    m.measure, p.n_void,
    coalesce(list(x.base_s order by x.block) filter (x.block is not null), []) as base_s,
    coalesce(list(x.treat_s order by x.block) filter (x.block is not null), []) as treat_s
from point_blocks p
cross join measures m
left join pair_measures x on x.run_id = p.run_id and x.point = p.point
    and x.baseline = p.baseline and x.measure = m.measure
where p.n_hops > 0 or m.position <> 2
group by p.run_id, p.point, p.workload, p.n_prefix, p.n_hops, p.baseline, p.treatment,
    m.measure, m.position, p.n_void
order by p.run_id, p.n_prefix, p.n_hops, p.point, p.baseline, m.position;

-- Share of each run's rounds (a point in a block) in which some pair may not be used.
create or replace view void_shares as
with rounds as (
    select run_id, point, block, bool_and(usable) as usable from block_pairs group by all
)
select run_id, count(*) as n_rounds, count(*) filter (not usable) as n_void,
       n_void / n_rounds as share
from rounds group by all;
