-- What a ratio can time. The first is the primary one; the others are named wherever they are shown.
create or replace table measures (measure varchar, position int);
insert into measures values
    ('whole session', 0),
    ('TTFT, first turn', 1),
    ('TTFT after a tool result, summed over hops', 2),
    ('prefill, summed over turns', 3),
    ('whole session, without transport', 4);

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
    union all
    select run_id, point, baseline, treatment, block, 4,
           base_wall_s - base_transport_s, treat_wall_s from block_pairs
    where usable and base_transport_s is not null
)
select t.run_id, t.point, t.baseline, t.treatment, t.block, m.measure, t.base_s, t.treat_s,
       ln(t.base_s) - ln(t.treat_s) as d,
       b.treat_position < b.base_position as treatment_first
from timed t
join measures m using (position)
join block_pairs b using (run_id, point, baseline, treatment, block)
where t.base_s > 0 and t.treat_s > 0;

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
    count(*) filter (not p.usable) as n_void,
    bool_or(p.base_transport_s is not null) as over_http
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
where (p.n_hops > 0 or m.position <> 2) and (p.over_http or m.position <> 4)
group by p.run_id, p.point, p.workload, p.n_prefix, p.n_hops, p.baseline, p.treatment,
    m.measure, m.position, p.n_void
order by p.run_id, p.n_prefix, p.n_hops, p.point, p.baseline, m.position;

-- Log block ratios of the whole session by which of the two arms ran first in the block.
create or replace view order_inputs as
select
    p.run_id, p.point, p.baseline, p.treatment,
    coalesce(list(x.d order by x.block) filter (x.treatment_first), []) as treatment_first,
    coalesce(list(x.d order by x.block) filter (not x.treatment_first), []) as baseline_first
from point_blocks p
left join pair_measures x on x.run_id = p.run_id and x.point = p.point
    and x.baseline = p.baseline and x.measure = 'whole session'
group by p.run_id, p.point, p.baseline, p.treatment, p.n_prefix, p.n_hops
order by p.run_id, p.baseline, p.n_prefix, p.n_hops, p.point;

-- Share of each run's rounds (a point in a block) in which some pair may not be used. A round that
-- was planned and is not there is one of them.
create or replace view void_shares as
with rounds as (
    select run_id, point, block, bool_and(usable) as usable from block_pairs group by all
)
select run_id, greatest(count(*), any_value(blocks_planned) * count(distinct point)) as n_rounds,
       n_rounds - count(*) filter (usable) as n_void, n_void / n_rounds as share
from rounds join run using (run_id) group by run_id;
