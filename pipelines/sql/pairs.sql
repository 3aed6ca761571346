-- Receipts and pairs: which blocks may be compared, and why the others may not.

-- What each arm is about, as far as receipts and pairs go. `repeats`: the arm is that one once more
-- (A/A). `planted`: the arm is slower than live KV by that share, on purpose. Both are baselines to
-- the same machinery, and never to a reader. `own_engine`: the arm runs on the engine that is
-- calibrated, and is fed its turns. Any other goes on with what it generates itself.
create or replace table arm_rules (
    arm varchar, state_kept boolean, own_engine boolean, repeats varchar, planted double);
insert into arm_rules values
    ('live_kv', true, true, null, null),
    ('live_kv_again', true, true, 'live_kv', null),
    ('live_kv_slowed_5', true, true, null, 0.05),
    ('live_kv_slowed_20', true, true, null, 0.20),
    ('reprefill', false, true, null, null),
    ('llama_server', true, false, null, null),
    ('llama_server_cold', false, false, null, null),
    ('llama_cpp_python', true, false, null, null);

-- What the scripted workload says each hop must have cost, in tokens the backend computed.
-- A turn that gets m tokens to feed and generates g evaluates m + (g - 1): the last generated
-- token is not decoded for its own sake, it rides with the next batch (hence the + 1 after hop 0).
-- Where state is kept, all of the context but what is fed must have been reused; else nothing.
-- An arm of another engine that keeps its state may have to compute more: where what it generated
-- leaves the script, its next prompt shares less with what it holds (n_shared, by comparing ids). It
-- must then have reused 99 % of what is shared, or it was not set up well; and nothing at first, or
-- it was not emptied before. What it computed beyond the script's tokens is n_extra.
-- An arm without a rule has no receipt, and no receipt never holds.
create or replace view receipts as
select
    h.run_id, h.point, h.block, h.arm, h.hop,
    h.n_new, h.n_context, h.n_generated, h.n_evaluated, h.n_reused, h.n_shared,
    case when a.state_kept then h.n_new + if(h.hop > 0, 1, 0) when not a.state_kept then h.n_context
    end as n_fed_expected,
    n_fed_expected + h.n_generated - 1 as n_evaluated_expected,
    h.n_context - n_fed_expected as n_reused_expected,
    if(a.own_engine, 0, h.n_evaluated - n_evaluated_expected) as n_extra,
    coalesce(case
        when a.own_engine or not a.state_kept
            then n_evaluated = n_evaluated_expected and n_reused = n_reused_expected
        else n_evaluated + n_reused = h.n_context + h.n_generated - 1
            and if(h.hop = 0, n_reused = 0, n_reused >= 0.99 * least(h.n_shared, h.n_context - 1))
    end, false) as holds
from hops h
left join arm_rules a using (arm);

-- One row an arm and block: its own fault, if it has one, and sums over the turns after a tool result.
-- `digests`: one number for all its ids, to be compared within this database only.
create or replace table arm_blocks as
with hop_sums as (
    select
        run_id, point, block, arm,
        count(*) as n_hop_rows,
        min(hop) as first_hop,
        max(hop) as last_hop,
        sum(ttft_s) filter (hop > 0) as ttft_after_tool_s,
        min(n_generated) as n_generated_min,
        max(n_generated) as n_generated_max,
        sum(hash(hop, digest_in, digest_out)) as digests
    from hops group by all
),
broken as (
    select
        run_id, point, block, arm,
        arg_min(
            if(n_fed_expected is null,
               format('{} has no receipt rule: what it must compute is not known', arm),
               format('{} hop {}: {} tokens evaluated, {} expected; {} reused, {} expected',
                      arm, hop, n_evaluated, n_evaluated_expected, n_reused, n_reused_expected)),
            hop) as receipt_fault
    from receipts where not holds group by all
)
select
    b.*,
    s.ttft_after_tool_s,
    s.digests,
    case
        when b.status <> 'ok' then format('{} is {}: {}', b.arm, b.status, coalesce(b.reason, 'no reason recorded'))
        when b.wall_s is null or b.ttft_s is null or b.prefill_s is null or b.decode_s is null
            then format('{} has no time', b.arm)
        when b.wall_s <= 0 or b.ttft_s <= 0 or b.prefill_s <= 0
            then format('{} has a time that is not positive', b.arm)
        when b.script_digest is null then format('{} has no script digest', b.arm)
        when coalesce(s.n_hop_rows, 0) <> b.n_hops + 1 or s.first_hop <> 0 or s.last_hop <> b.n_hops
            then format('{} has {} turns, {} expected', b.arm, coalesce(s.n_hop_rows, 0), b.n_hops + 1)
        when s.n_generated_min <> b.n_generate or s.n_generated_max <> b.n_generate
            then format('{} generated {} to {} tokens a turn, {} expected',
                        b.arm, s.n_generated_min, s.n_generated_max, b.n_generate)
        else k.receipt_fault
    end as fault
from blocks b
left join hop_sums s using (run_id, point, block, arm)
left join broken k using (run_id, point, block, arm);

-- The first hop at which two arms did not do the same work, token for token. Looked for only where
-- the sums of all their digests differ: hop against hop is the dearest question of all.
create or replace table digest_faults as
with suspects as (
    select t.run_id, t.point, t.block, b.arm as baseline
    from arm_blocks t
    join arm_blocks b on b.run_id = t.run_id and b.point = t.point and b.block = t.block
        and b.arm <> t.arm
    where t.arm = 'live_kv' and t.digests <> b.digests
)
select
    s.run_id, s.point, s.block, s.baseline,
    min(t.hop) as hop
from suspects s
join hops t on t.run_id = s.run_id and t.point = s.point and t.block = s.block and t.arm = 'live_kv'
join hops b on b.run_id = s.run_id and b.point = s.point and b.block = s.block
    and b.arm = s.baseline and b.hop = t.hop
where t.digest_in <> b.digest_in or t.digest_out <> b.digest_out
group by all;

-- A disturbed machine voids the block for every arm, by limits the expectation fixed beforehand.
create or replace table disturbed as
with watched as (
    select
        b.run_id, b.point, b.block, b.position,
        case
            when b.steal_fraction > l.steal_fraction_max
                then format('{}: steal {:.3f} above {:.3f}', b.arm, b.steal_fraction, l.steal_fraction_max)
            when b.other_cpu_fraction > l.other_cpu_fraction_max
                then format('{}: other processes {:.3f} above {:.3f}',
                            b.arm, b.other_cpu_fraction, l.other_cpu_fraction_max)
            when b.gpu_other_processes > l.gpu_other_processes_max
                then format('{}: {} other process(es) on the GPU, {} allowed',
                            b.arm, b.gpu_other_processes, l.gpu_other_processes_max)
            -- The runner puts this word in every reason by which the GPU protects itself.
            when contains(b.gpu_throttle, 'slowdown') and not l.gpu_slowdown_allowed
                then format('{}: the GPU was slowed: {}', b.arm, b.gpu_throttle)
        end as disturbance
    from blocks b
    join run r using (run_id)
    join expectations l on l.digest = r.expectation_digest
)
select run_id, point, block, arg_min(disturbance, position) as disturbance
from watched where disturbance is not null
group by all;

-- One row a point, block and baseline arm. `reason` is NULL when the pair may be used.
create or replace table block_pairs as
with rounds as (select distinct run_id, point, block from blocks),
baselines as (select distinct run_id, point, arm as baseline from blocks where arm <> 'live_kv'),
paired as (
    select
        r.run_id, r.point, r.block, a.baseline,
        t as treat, b as base, f.hop as digest_hop, d.disturbance
    from rounds r
    join baselines a using (run_id, point)
    left join arm_blocks t on t.run_id = r.run_id and t.point = r.point and t.block = r.block and t.arm = 'live_kv'
    left join arm_blocks b on b.run_id = r.run_id and b.point = r.point and b.block = r.block and b.arm = a.baseline
    left join digest_faults f on f.run_id = r.run_id and f.point = r.point and f.block = r.block
        and f.baseline = a.baseline
    left join disturbed d on d.run_id = r.run_id and d.point = r.point and d.block = r.block
)
select
    run_id, point, block, baseline, 'live_kv' as treatment,
    base.position as base_position, treat.position as treat_position,
    base.wall_s as base_wall_s, treat.wall_s as treat_wall_s,
    base.ttft_s as base_ttft_s, treat.ttft_s as treat_ttft_s,
    base.ttft_after_tool_s as base_ttft_after_tool_s, treat.ttft_after_tool_s as treat_ttft_after_tool_s,
    base.prefill_s as base_prefill_s, treat.prefill_s as treat_prefill_s,
    base.decode_s as base_decode_s, treat.decode_s as treat_decode_s,
    base.n_requests * base.transport_s as base_transport_s,
    case
        when treat.arm is null then 'live_kv did not run in this block'
        when base.arm is null then format('{} did not run in this block', baseline)
        when treat.fault is not null then treat.fault
        when base.fault is not null then base.fault
        when disturbance is not null then disturbance
        when treat.script_digest <> base.script_digest then 'the arms were given different scripts'
        when digest_hop is not null then format('the arms differ in their tokens at hop {}', digest_hop)
    end as reason,
    reason is null as usable
from paired
order by run_id, point, baseline, block;
