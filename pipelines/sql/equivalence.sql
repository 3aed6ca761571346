-- What the arms would say freely, from the same conversation at chosen hops: one row a run, point
-- and comparison. `free` is live KV against re-prefill, whose batches have other shapes and round
-- otherwise; `matched` is live KV against a cold replay of its own batches, the control: equal
-- shapes must agree. Tokens count up to the first divergence of a hop, logits up to and including it.
create or replace view equivalence_points as
with points as (
    select
        e.run_id, e.point, e.comparison,
        count(*) as n_turns,
        coalesce(sum(e.n_tokens) filter (e.reason is null), 0)::bigint as n_tokens,
        coalesce(sum(e.n_agreed) filter (e.reason is null), 0)::bigint as n_agreed,
        min(e.hop) filter (e.reason is null and e.n_agreed < e.n_tokens) as first_divergence_hop,
        arg_min(e.n_agreed, e.hop) filter (e.reason is null and e.n_agreed < e.n_tokens)
            as agreed_before_it,
        min(e.top2_margin) as smallest_margin,
        min(e.top2_margin / nullif(e.logit_sd, 0)) as smallest_margin_sd,
        max(e.max_logit_difference) as largest_difference,
        max(e.max_logit_difference / nullif(e.logit_sd, 0)) as largest_difference_sd,
        arg_min(e.reason, e.hop) filter (e.reason is not null) as reason
    from equivalence e
    group by all
),
-- The bound of the bring-up checks, 0.01 standard deviations of the logits, here on the largest
-- difference. A comparison that could not be made does not hold.
controls as (
    select run_id, point,
        coalesce(reason is null and n_agreed = n_tokens and largest_difference_sd <= 0.01, false)
            as control_holds
    from points where comparison = 'matched'
)
select
    p.run_id, p.point, p.comparison, p.n_turns, p.n_tokens, p.n_agreed,
    p.n_agreed / nullif(p.n_tokens, 0) as share_agreed,
    p.first_divergence_hop, p.smallest_margin, p.smallest_margin_sd,
    p.largest_difference, p.largest_difference_sd, p.reason, c.control_holds,
    case
        when not c.control_holds then 'control failed'
        when p.n_tokens = 0 then 'not compared'
        else format('{} of {} tokens', p.n_agreed, p.n_tokens)
    end as short,
    case
        when p.reason is not null then format('Not compared: {}.', p.reason)
        when p.comparison = 'matched' and c.control_holds
            then format('The control holds: in equal batch shapes all {} tokens agree, logits within {:.2g} sd.',
                        p.n_tokens, p.largest_difference_sd)
        when p.comparison = 'matched'
            then format('CONTROL FAILED: in equal batch shapes {} of {} tokens agree, logits differ by up to {:.2g} sd; kept state is not what its tokens say.',
                        p.n_agreed, p.n_tokens, p.largest_difference_sd)
        when p.first_divergence_hop is null
            then format('Live KV and re-prefill say the same {} tokens; logits differ by up to {:.2g} sd.',
                        p.n_tokens, p.largest_difference_sd)
        else format('Live KV and re-prefill first part at hop {} after {} tokens; where they part, the first choice leads by as little as {:.2g} sd, and logits differ by up to {:.2g} sd.',
                    p.first_divergence_hop, p.agreed_before_it, p.smallest_margin_sd, p.largest_difference_sd)
    end as sentence
from points p
left join controls c using (run_id, point)
order by p.run_id, p.point, p.comparison;
