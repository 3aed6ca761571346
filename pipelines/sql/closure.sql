-- Both arms of a usable block, hop by hop. `fed`: prompt tokens the engine computed for the turn,
-- its receipt without the steps that generate; they start behind `reused` tokens in KV.
create or replace view hop_pairs as
select
    p.run_id, p.point, p.baseline, p.treatment, p.block, b.hop,
    b.wall_s as base_wall_s, t.wall_s as treat_wall_s,
    b.prefill_s as base_prefill_s, t.prefill_s as treat_prefill_s,
    b.decode_s as base_decode_s, t.decode_s as treat_decode_s,
    b.n_evaluated as base_evaluated, t.n_evaluated as treat_evaluated,
    b.n_evaluated - b.n_generated + 1 as base_fed, t.n_evaluated - t.n_generated + 1 as treat_fed,
    b.n_reused as base_reused, t.n_reused as treat_reused,
    b.n_context, b.n_generated
from block_pairs p
join hops t on t.run_id = p.run_id and t.point = p.point and t.block = p.block and t.arm = p.treatment
join hops b on b.run_id = p.run_id and b.point = p.point and b.block = p.block and b.arm = p.baseline
    and b.hop = t.hop
where p.usable
order by p.run_id, p.point, p.baseline, p.block, b.hop;

-- Where the saved seconds come from, hop by hop: prefill, decode and the rest, one clock, all of it
-- measured. Means over the usable blocks; other = saved - prefill difference - decode difference.
-- What calibration predicts of it stands in `closure_hops` and `closure_points`.
create or replace view closure as
select
    run_id, point, baseline, treatment, hop,
    count(*) as n_blocks,
    avg(base_wall_s - treat_wall_s) as saved_s,
    avg(base_prefill_s - treat_prefill_s) as prefill_s,
    avg(base_decode_s - treat_decode_s) as decode_s,
    avg((base_wall_s - treat_wall_s) - (base_prefill_s - treat_prefill_s)
        - (base_decode_s - treat_decode_s)) as other_s,
    avg(base_evaluated - treat_evaluated) as tokens_not_evaluated
from hop_pairs
group by all
order by all;

-- The reference's own claim: the time saved should equal hops x TTFT. Shown twice: with all of the
-- baseline's TTFT after a tool result, and with what is left when live KV's own TTFT is taken off.
create or replace view hops_times_ttft as
select
    p.run_id, p.point, p.baseline,
    any_value(b.n_hops) as n_hops,
    avg(p.base_wall_s - p.treat_wall_s) as saved_s,
    avg(p.base_ttft_after_tool_s) as hops_x_ttft_s,
    avg(p.base_ttft_after_tool_s - p.treat_ttft_after_tool_s) as hops_x_ttft_difference_s,
    saved_s / nullif(hops_x_ttft_s, 0) as share_of_ttft,
    saved_s / nullif(hops_x_ttft_difference_s, 0) as share_of_ttft_difference
from block_pairs p
join (select distinct run_id, point, n_hops from blocks) b using (run_id, point)
where p.usable and b.n_hops > 0
group by all
order by all;
