-- Per machine, model and point the newest complete run, a registered one before any other; whole
-- session only, published and local runs apart. A/A and planted slowdowns are no baselines: they
-- stay in `ratios`.
-- `replication` is NULL where the run is no evidence, `explained` where closure is not known.
-- `is_headline`: evidence, and what was saved adds up where the expectation asks for that.
create or replace view headline as
select
    r.run_id, r.platform, r.model_id, r.model_name, r.model_kind, r.output_meaningful, r.published,
    r.registration_status, r.started_at, r.machine_key, coalesce(r.gpu, r.cpu) as hardware,
    q.point, q.workload, q.n_prefix, q.n_hops, q.baseline, q.measure,
    q.n_blocks, q.n_void, q.ratio, q.low, q.high,
    v.role, v.verdict, v.forecast, v.sentence, coalesce(v.evidence, false) as evidence,
    p.state as replication, c.explained, c.within_bound, c.unexplained_share, x.efficiency,
    coalesce(v.evidence, false) and (
        e.unexplained_max is null or coalesce(c.tokens_not_evaluated = 0, false)
        or coalesce(c.within_bound, false)) as is_headline
from ratios q
join run r using (run_id)
left join verdicts v using (run_id, point, baseline)
join arm_rules a on a.arm = q.baseline
left join replications p on p.point = q.point and p.baseline = q.baseline
    and p.published = r.published and list_contains(p.runs, r.run_id)
left join closure_points c on c.run_id = q.run_id and c.point = q.point and c.baseline = q.baseline
left join ceilings x on x.run_id = q.run_id and x.point = q.point and x.baseline = q.baseline
left join expectations e on e.digest = r.expectation_digest
where r.status = 'complete' and q.measure = 'whole session'
    and a.repeats is null and a.planted is null
qualify row_number() over (
    partition by r.platform, r.machine_key, r.model_id, q.point, q.baseline, r.published
    order by r.registration_status = 'registered' desc, r.started_at desc, r.run_id desc) = 1
order by r.platform, hardware, r.machine_key, r.model_id, q.n_hops, q.n_prefix, q.point, q.baseline,
    r.published desc;

-- Mechanism and competition side by side and never mixed: against re-prefill, and against each other
-- way to keep state or not. `floor_ratio`: live KV over what llama-bench says its tokens cost.
create or replace view sides as
with baselines as (
    select platform, machine_key, any_value(hardware) as hardware, model_id, point,
           any_value(n_prefix) as n_prefix, any_value(n_hops) as n_hops, published,
           any_value(struct_pack(run_id, ratio, low, high, n_blocks, verdict, registration_status))
               filter (baseline = 'reprefill') as mechanism,
           any_value(struct_pack(run_id, ratio, low, high, n_blocks, verdict, registration_status))
               filter (baseline = 'llama_server') as server,
           any_value(struct_pack(run_id, ratio, low, high, n_blocks, verdict, registration_status))
               filter (baseline = 'llama_server_cold') as server_cold,
           any_value(struct_pack(run_id, ratio, low, high, n_blocks, verdict, registration_status))
               filter (baseline = 'llama_cpp_python') as binding
    from headline group by platform, machine_key, model_id, point, published
)
select b.*, f.ratio as floor_ratio, f.low as floor_low, f.high as floor_high
from baselines b
left join floors f on f.run_id = b.server.run_id and f.point = b.point and f.arm = 'live_kv'
order by platform, hardware, machine_key, model_id, n_hops, n_prefix, published desc;

-- Tokens that an arm computed beyond the script's, because what it generated left it.
create or replace view extra_tokens as
select run_id, point, arm, count(distinct block) as n_blocks,
       sum(n_extra) / count(distinct block) as n_extra_a_block,
       max(n_extra) as n_extra_max,
       sum(n_evaluated) / count(distinct block) as n_evaluated_a_block
from receipts join arm_rules using (arm) where not own_engine
group by all order by all;

-- A slowdown of known size, and whether the whole pipeline found it: newest run first.
create or replace view planted as
select
    r.run_id, r.platform, r.model_id, r.published, r.started_at, q.point, q.n_prefix, q.n_hops,
    q.baseline, 1 + a.planted as planted_ratio, q.n_blocks, q.n_void, q.ratio, q.low, q.high,
    planted_ratio between q.low and q.high as recovered
from ratios q join run r using (run_id) join arm_rules a on a.arm = q.baseline
where a.planted is not null and q.measure = 'whole session' and r.status = 'complete'
order by r.started_at desc, r.run_id, q.n_hops, q.n_prefix, a.planted;

-- Each published figure with ours beside it. `comparable` says whether platform and model are those
-- of the figure; the machine never is, so even then it orients and proves nothing.
create or replace view measured_vs_target as
select
    t.id as target_id, t.mechanism, t.times, t.setting, t.platform as target_platform,
    t.model as target_model, t.hardware, t.nominal_prefix, t.measured_prefix, t.hops,
    t.low as target_low, t.high as target_high, t.figure, t.source, t.cited,
    h.run_id, h.platform, h.model_id, h.point, h.baseline, h.ratio, h.low, h.high, h.n_blocks,
    h.verdict, h.forecast, h.published, h.hardware as our_hardware, h.registration_status,
    h.replication, h.explained,
    case
        when h.run_id is null then null
        when h.platform <> t.platform then 'another platform'
        when not list_contains(t.comparable_models, h.model_id) then 'another model'
        when not h.output_meaningful then 'same shape and quantisation, another machine'
        else 'same model, another machine'
    end as comparison,
    coalesce(h.platform = t.platform and list_contains(t.comparable_models, h.model_id), false)
        as comparable
from targets t
left join headline h
    on t.workload = h.workload and t.measured_prefix = h.n_prefix and t.hops = h.n_hops
    and t.baseline = h.baseline and t.times = h.measure and h.ratio is not null
order by t.position, h.published desc, h.platform, h.model_id, h.hardware, h.machine_key;

-- What the chart of measured against target draws: ours first, then the figures of others.
create or replace view chart_points as
select
    format('ours: {}, {}, {}{}{}', model_id, platform, hardware,
           if(published, '', ' (local run)'),
           -- A gate fails for a whole run: its line says so wherever it is drawn.
           if(bool_or(coalesce(verdict = 'INVALID', false)) over (partition by run_id), ' (INVALID)', '')
    ) as series,
    true as ours, n_prefix, n_hops, ratio, low, high, n_blocks, published
from headline where ratio is not null and baseline = 'reprefill'
union all
select format('published: {}, {}', hardware, model), false, measured_prefix, hops, low, null, null,
       null, true
from targets
where times = 'whole session' and measured_prefix is not null and hops is not null
order by ours desc, published desc, series, n_hops, n_prefix;

-- What a token costs behind few others and behind many, from the calibration of each run: a full chunk
-- of a prompt, the tokens of a hop, a single decode step. `factor`: how much dearer depth makes it.
create or replace view depth_costs as
with timed as (
    select run_id, kind, n_tokens, depth, avg(seconds / n_tokens) as token_s
    from calibration where seconds > 0 and n_tokens > 0 group by all
),
sizes as (
    select run_id, kind, max(n_tokens) as n_tokens from timed where depth > 0 group by all
),
ends as (
    select
        run_id, kind, n_tokens,
        min(depth) as shallow, arg_min(token_s, depth) as shallow_s,
        max(depth) as deep, arg_max(token_s, depth) as deep_s
    from timed join sizes using (run_id, kind, n_tokens) group by all
)
select
    r.platform, coalesce(r.gpu, r.cpu) as hardware, r.machine_key, r.model_id, r.published,
    r.started_at, e.*, e.deep_s / e.shallow_s as factor
from ends e join run r using (run_id)
where e.shallow < e.deep
order by r.platform, hardware, r.model_id, e.run_id, e.n_tokens desc;
